"""DATASETS: the published datasets, one row each: archives, contents and reader."""

from strongreplay.data import tinyimagenet
from strongreplay.data.archives import Archive
from strongreplay.data.dataset_readers import Dataset, read_digits, read_members, read_tinyimagenet
from strongreplay.data.formats import cifar_member, idx_archives, parse_cifar, parse_idx

_CIFAR10, _CIFAR100 = "cifar-10-batches-bin", "cifar-100-binary"
_ROWS = (
    Dataset(
        name="mnist",
        description="handwritten digits",
        shape=(1, 28, 28),
        num_classes=10,
        num_train=60_000,
        num_test=10_000,
        archives=idx_archives(
            "mnist",
            (
                "https://ossci-datasets.s3.amazonaws.com/mnist",
                "https://storage.googleapis.com/cvdf-datasets/mnist",
            ),
            {
                "train-images-idx3-ubyte": (
                    "f68b3c2dcbeaaa9fbdd348bbdeb94873",
                    "6bbc9ace898e44ae57da46a324031adb",
                ),
                "train-labels-idx1-ubyte": (
                    "d53e105ee54ea40749a09fcbcd1e9432",
                    "a25bea736e30d166cdddb491f175f624",
                ),
                "t10k-images-idx3-ubyte": (
                    "9fb629c4189551a2d022fa330f9573f3",
                    "2646ac647ad5339dbf082846283269ea",
                ),
                "t10k-labels-idx1-ubyte": (
                    "ec29112dd5afa0611ce80d1b7f02629c",
                    "27ae3e4e09519cfbb04c329615203637",
                ),
            },
        ),
        read=read_members,
        parse=parse_idx,
        is_balanced=False,
    ),
    Dataset(
        name="fashion-mnist",
        description="clothes, shoes and bags",
        shape=(1, 28, 28),
        num_classes=10,
        num_train=60_000,
        num_test=10_000,
        archives=idx_archives(
            "fashion-mnist",
            (
                "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
                "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion",
            ),
            {
                "train-images-idx3-ubyte": ("8d4fb7e6c68d591d4c3dfef9ec88bf0d", None),
                "train-labels-idx1-ubyte": ("25c81989df183df01b3e8a0aad5dffbe", None),
                "t10k-images-idx3-ubyte": ("bef4ecab320f06d8554ea6380940ec79", None),
                "t10k-labels-idx1-ubyte": ("bb300cfdad3c16e7a12a480ee83cd310", None),
            },
        ),
        read=read_members,
        parse=parse_idx,
    ),
    Dataset(
        name="cifar10",
        description="photographs of animals and vehicles",
        shape=(3, 32, 32),
        num_classes=10,
        num_train=50_000,
        num_test=10_000,
        archives=(
            Archive(
                "cifar-10-binary.tar.gz",
                "sha256:c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
                ("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",),
                (
                    *(
                        cifar_member(f"{_CIFAR10}/data_batch_{k}.bin", "train", 10_000, 1)
                        for k in range(1, 6)
                    ),
                    cifar_member(f"{_CIFAR10}/test_batch.bin", "test", 10_000, 1),
                ),
            ),
        ),
        read=read_members,
        parse=parse_cifar,
    ),
    Dataset(
        name="cifar100",
        description="photographs of a hundred kinds of things",
        shape=(3, 32, 32),
        num_classes=100,
        num_train=50_000,
        num_test=10_000,
        archives=(
            Archive(
                "cifar-100-binary.tar.gz",
                "md5:03b5dce01913d631647c71ecec9e9cb8",
                ("https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",),
                (
                    cifar_member(
                        f"{_CIFAR100}/train.bin", "train", 50_000, 2, "md5:6172c7755cfe09b2fe270c85cebc1b15"
                    ),
                    cifar_member(
                        f"{_CIFAR100}/test.bin", "test", 10_000, 2, "md5:4499cfba6c016c1be1438163640a0898"
                    ),
                ),
            ),
        ),
        read=read_members,
        parse=parse_cifar,
    ),
    Dataset(
        name="tinyimagenet",
        description="two hundred classes of ImageNet at 64 x 64",
        shape=(3, 64, 64),
        num_classes=200,
        num_train=100_000,
        num_test=10_000,
        archives=(
            Archive(
                f"{tinyimagenet.TREE}.zip",
                "md5:90528d7ca1a48142e341f4ef8d21d0de",
                ("http://cs231n.stanford.edu/tiny-imagenet-200.zip",),
                folders=(tinyimagenet.TREE, tinyimagenet.CACHE),
            ),
        ),
        read=read_tinyimagenet,
    ),
    Dataset(
        name="digits",
        description="handwritten digits at 8 x 8",
        shape=(1, 8, 8),
        num_classes=10,
        num_train=1_437,
        num_test=360,
        archives=(),
        read=read_digits,
        is_balanced=False,
    ),
)

DATASETS: dict[str, Dataset] = {row.name: row for row in _ROWS}
