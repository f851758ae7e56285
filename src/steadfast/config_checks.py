"""What a run's configuration may be: each value by itself, and all of them together.

Every refusal comes before anything has started, and names the value and the remedy.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch

from . import augment as augments
from . import backbones, heads
from .errors import BadConfig, nearest
from .learner import PRECISIONS
from .memory import POLICIES
from .methods import recipe as recipe_options
from .methods.ewc import IMPORTANCES
from .polytopes import MOST_LOGITS
from .recipes import RECIPES
from .streams import ORDERS

if TYPE_CHECKING:
    from .config import Config

LARGEST = 2**31 - 1  # of any count
MOST_POLYGON_SLOTS = 100  # beyond it, neighbouring directions are under four degrees apart
OF_THE_MEMORY = ("vary", "distill", "distill_weight", "insert", "remembered")  # of no use without one


def check_values(config: Config) -> None:
    """Each value by itself: its type, its bounds, the names it may have."""
    counts = {"batch": 2, "epochs": 1, "seed": 0, "slots": 1, "embedding": 1, "memory": 0, "importance_samples": 1,
              "tasks": 1, "classes_per_task": 1, "remembered": 1}
    for name, least in counts.items():
        value = getattr(config, name)
        if value is None and getattr(type(config), name) is None:  # the default is not yet known
            continue
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise BadConfig(f"{name} is {value!r}; it must be a whole number, {least} or more.")
        if value > LARGEST and name != "slots":  # of slots the head knows its own limit
            raise BadConfig(f"{name} is above {LARGEST:,}, the largest that can be.")
    for name in ("lr", "validation", "strength", "margin", "empty", "distill_weight"):
        value = getattr(config, name)
        if value is not None and (not isinstance(value, int | float) or isinstance(value, bool)):
            raise BadConfig(f"{name} is {value!r}; it must be a number.")
        if value is not None and 1e30 < abs(value) < math.inf:  # an integer may be too large to become a float
            raise BadConfig(f"{name} is beyond 1e30; choose a number that can be meant.")
    if config.lr is not None and not (math.isfinite(config.lr) and config.lr > 0):
        raise BadConfig(f"lr is {config.lr}; a learning rate is a finite number above 0, 0.001 by default.")
    if not (math.isfinite(config.margin) and config.margin >= 0):
        raise BadConfig(f"margin is {config.margin}; it is a finite number, 0 or more, 0.5 by default.")
    if config.strength is not None and not (math.isfinite(config.strength) and config.strength >= 0):
        raise BadConfig(f"strength is {config.strength}; the weight of a penalty is a finite number, 0 or more.")
    if config.importance not in IMPORTANCES:
        raise BadConfig(f"importance is {config.importance!r}; choose one of {', '.join(IMPORTANCES)}.")
    if not 0 < config.empty <= 1:
        raise BadConfig(f"empty is {config.empty}; it is a count above 0 and at most 1, which is the default.")
    if config.distill_weight is not None and not (math.isfinite(config.distill_weight) and config.distill_weight >= 0):
        raise BadConfig(f"distill_weight is {config.distill_weight}; a weight is a finite number, 0 or more.")
    if not isinstance(config.balance, bool | None):
        raise BadConfig(f"balance is {config.balance!r}; it is True or False, or None: as the recipe has it.")
    named: dict[str, Iterable[str]] = {
        "recipe": RECIPES, "distill": recipe_options.DISTILL, "insert": recipe_options.INSERT,
        "precision": PRECISIONS,
    }
    for name, known in named.items():
        if getattr(config, name) not in (*known, getattr(type(config), name)):
            raise BadConfig(f"{name} is {getattr(config, name)!r}; choose one of {', '.join(known)}.")
    for name in ("vary", "augment"):
        if callable(function := getattr(config, name)):
            raise BadConfig(
                f"{name} is a function; give it a name, by which a run can be known and repeated: "
                f"steadfast.augment.register('mine')({getattr(function, '__name__', 'function')}), {name}='mine'."
            )
    if not 0 <= config.validation < 1:
        raise BadConfig(f"validation is {config.validation}; it is a share of the training samples, 0 to below 1.")


def check_together(config: Config, classes: int) -> None:
    """All of them, every None filled in, for a benchmark of so many classes."""
    assert config.slots is not None and config.head is not None and config.backbone is not None
    heads.HEADS[config.head]  # an unknown one raises with the nearest name
    backbones.check(config.backbone)
    augments.get(config.augment or "none")
    augments.get(config.vary or "none")
    _check_recipe(config)
    if config.remembered is not None and config.remembered >= config.batch:
        raise BadConfig(f"remembered is {config.remembered}, of a batch of {config.batch}: lower it, or raise batch.")
    if config.policy not in POLICIES:
        raise nearest("memory policy", config.policy, POLICIES)
    if config.order not in ORDERS:
        raise BadConfig(f"order is {config.order!r}; choose one of {', '.join(ORDERS)}.")
    if config.over not in (None, *heads.OVER):
        raise BadConfig(f"over is {config.over!r}; the softmax runs over one of {', '.join(heads.OVER)}.")
    if config.optimizer not in ("adam", "sgd"):
        raise BadConfig(f"optimizer is {config.optimizer!r}; choose adam or sgd.")
    if config.slots < classes:
        raise BadConfig(f"{config.slots} slots cannot hold the {classes} classes of {config.benchmark}: raise slots.")
    if config.memory and config.memory < classes:
        raise BadConfig(
            f"A memory of {config.memory} images cannot hold the {classes} classes of {config.benchmark}: "
            f"give it at least {classes}, or 0 for none."
        )
    if config.head == "polygon" and config.slots > MOST_POLYGON_SLOTS:
        raise BadConfig(
            f"A polygon of {config.slots} slots puts neighbours {360 / config.slots:.2g} degrees apart in a plane, "
            f"too near to tell; choose simplex, orthoplex or cube, or at most {MOST_POLYGON_SLOTS} slots."
        )
    try:
        with torch.device("meta"):  # takes no memory, and the head refuses what it cannot be
            heads.build(config.head, 1, config.slots, over=config.over, embedding=config.embedding)
    except (TypeError, RuntimeError, OverflowError) as error:
        raise BadConfig(f"A {config.head} of {config.slots} slots is too large for a tensor: lower slots.") from error


def _check_recipe(config: Config) -> None:
    assert config.slots is not None
    if config.head == "cube" and config.slots > MOST_LOGITS and (config.balance or config.distill == "logits"):
        what, off = ("balance", False) if config.balance else ("distill", "none")
        raise BadConfig(
            f"A cube of {config.slots} slots never forms all its logits, as {what} needs; leave {what} out "
            f"({what}={off!r}, or recipe='paper'), or allocate at most {MOST_LOGITS} slots."
        )
    if config.insert == "during" and config.policy not in ("task", "reservoir"):
        raise BadConfig(f"insert is 'during', which is by reservoir; leave out the policy {config.policy!r}.")
    for name in OF_THE_MEMORY:
        if config.memory == 0 and not config.is_default(name):
            raise BadConfig(
                f"{name} is {getattr(config, name)!r}, but memory is 0: nothing is remembered that it could be of; "
                f"leave {name} out, or give a memory."
            )
    for name, owner in {"empty": "balance", "distill_weight": "distill"}.items():
        if not config.is_default(name) and config.is_default(owner):
            raise BadConfig(f"{name} is {getattr(config, name)}, but {owner} is off; set {owner}, or leave it out.")
