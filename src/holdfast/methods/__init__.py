"""The registry of methods, one file per method."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..registry import Registry

if TYPE_CHECKING:
    from ..learning.method import Method

_HERE = "holdfast.methods"

METHODS: Registry[type[Method]] = Registry(
    "method", _HERE,
    {
        "replay": (f"{_HERE}.replay:Replay",
                   "half of each batch is new, half from memory (the paper's method, with any head)"),
        "solved": (f"{_HERE}.solved:Solved",
                   "frozen backbone, classifier in closed form from sums: exact, keeps no samples"),
        "ewc": (f"{_HERE}.ewc:EWC", "elastic weight consolidation, one anchor per task (Kirkpatrick et al. 2017)"),
        "online-ewc": (f"{_HERE}.ewc:OnlineEWC",
                       "elastic weight consolidation with one anchor (the latest weights) and summed importances "
                       "(Schwarz et al. 2018)"),
        "si": (f"{_HERE}.si:SI",
               "synaptic intelligence: how much each parameter's path lowered the loss (Zenke et al. 2017)"),
        "mas": (f"{_HERE}.mas:MAS",
                "memory aware synapses: how strongly the outputs depend on each parameter; needs no labels "
                "(Aljundi et al. 2018)"),
        "gem": (f"{_HERE}.gem:GEM",
                "project the gradient so that no old task's memory loss rises (Lopez-Paz and Ranzato 2017)"),
        "agem": (f"{_HERE}.agem:AGEM",
                 "GEM with one constraint: the mean loss on a batch from memory (Chaudhry et al. 2019)"),
        "er-ace": (f"{_HERE}.er_ace:ERACE",
                   "replay in which new samples compete only with new classes (Caccia et al. 2022)"),
        "der": (f"{_HERE}.der:DER",
                "stay near the logits that the memory stored with its samples (Buzzega et al. 2020)"),
        "der++": (f"{_HERE}.der:DERPlus", "der, and replay of the memory's labels (Buzzega et al. 2020)"),
        "lwf": (f"{_HERE}.lwf:LwF",
                "stay near the answers of the model before the task; no memory (Li and Hoiem 2016)"),
        "icarl": (f"{_HERE}.icarl:ICaRL",
                  "distillation, and the nearest mean of exemplars chosen by herding (Rebuffi et al. 2017)"),
        "lucir": (f"{_HERE}.lucir:LUCIR",
                  "cosine head, less-forget constraint on the features, margin ranking (Hou et al. 2019)"),
        "il2m": (f"{_HERE}.il2m:IL2M",
                 "replay whose scores are rectified by stored class statistics (Belouadah and Popescu 2019)"),
        "wa": (f"{_HERE}.wa:WA", "distillation, and new rows scaled to the length of old ones (Zhao et al. 2020)"),
        "ncm": (f"{_HERE}.ncm:NCM", "frozen backbone, nearest class mean (Mensink et al. 2013)"),
        "slda": (f"{_HERE}.slda:SLDA",
                 "frozen backbone, streaming linear discriminant analysis (Hayes and Kanan 2020)"),
        "ranpac": (f"{_HERE}.ranpac:RanPAC",
                   "frozen backbone, random projections and a ridge classifier (McDonnell et al. 2023)"),
        "finetune": (f"{_HERE}.simple:Finetune", "learn each task and keep nothing: the lower bound"),
        "joint": (f"{_HERE}.simple:Joint", "learn all tasks at once from all data: the upper bound"),
    },
)
