"""Wrong commands as people type them: each gets one clear line, no traceback, and loses nothing."""

import shlex
import shutil
from pathlib import Path

import pytest
from support.commands import Ser, ser

__all__ = ["ser"]  # a fixture
FIXTURES = Path(__file__).parents[1] / "fixtures" / "written_by_0.1"
RECORD = "rec/split-digits/ser-m20-b3dae4c058/seed-0.json"

# RUN is `ser run split-digits`, RECORD a record, kept a model, notes.txt a text, empty a folder, and
# loop a link to itself.
WRONG = [
    # How settings are typed
    ("RUN --set data.validation=0.9999", "data.validation=0.9999 holds out 287 of the 287 samples of a task"),
    ("RUN --set data.validation=0.0001", "expected as many as classes, and as many left to learn; try 0.1"),
    ("RUN --set data.validation=1", "data.validation must be < 1.0"),
    ("RUN --threads 100000", "less than or equal to 1024"),
    ("RUN --set train.schedule=cosine --set train.warmup=50", "train.warmup must be shorter than"),
    ("RUN --set train.warmup=5", "train.warmup needs train.schedule=cosine"),
    ("RUN --set train.min_lr=0.001", "train.min_lr needs train.schedule"),
    ("RUN --set method.terms=foo", "must be 'current', 'replay', 'backward' or 'forward', got 'foo'"),
    ("RUN --set method.terms=", "method.terms must not be empty"),
    ("RUN --set train.milestones=abc", "train.milestones must be a whole number, got 'abc'"),
    ("RUN --set train.milestones=-1", "train.milestones must be >= 1"),
    ("RUN --set train.lr=", "train.lr must be a number, got ''"),
    ("RUN --set train.lr=0,1", "train.lr must be > 0.0, got '0'"),
    ("RUN --set train.epochs=1.5", "train.epochs must be a whole number, got '1.5'"),
    ("RUN --set train.momentum=1", "train.momentum must be < 1.0"),
    ("RUN --set train.optimizer=adamax", "must be 'sgd', 'adam' or 'adamw'"),
    ("RUN --set train.optimizer=adam --set train.betas=0.9", "train.betas has too few values"),
    ("RUN --set train.optimizer=adam --set train.betas=0.9,0.9,0.9", "at most 2 values"),
    ("RUN --set net.width=wide", "net.width must be a whole number"),
    ("RUN --set seed=5", "unknown setting 'seed'; use --seeds"),
    ("RUN --set lr=0.1", "did you mean 'train.lr'?"),
    ("RUN --set train.learning_rate=0.1", "unknown setting 'train.learning_rate'"),
    ("RUN --set =0.1", "--set takes KEY=VALUE"),
    ("RUN --set train.lr:0.1", "--set takes KEY=VALUE"),
    ("RUN --set eval.candidates=none", "eval.candidates must be 'seen' or 'all'"),
    # Options of runs
    ("RUN --memory 20 --set method.memory_size=50", "--memory 20 contradicts method.memory_size=50"),
    ("RUN --tasks 5 --set data.num_tasks=2", "--tasks 5 contradicts data.num_tasks=2"),
    ("RUN --memory 20MB", "--memory takes whole numbers"),
    ("RUN --memory=-5", "--memory takes whole numbers"),
    ("RUN --memory 1e3", "--memory takes whole numbers"),
    ("RUN --seeds 1-5", "--seeds must be a count >= 1 or numbers >= 0 with commas"),
    ("RUN --seeds=-1", "--seeds must be a count >= 1"),
    ("RUN --seeds 2026", "for the seed 2026 alone write --seeds 2026,"),
    ("RUN --seeds 99999999999999", "expected at most 1,000"),
    ("RUN --tasks 11", "10 classes cannot be divided into 11 tasks"),
    ("RUN --tasks 3.5", "--tasks takes whole numbers"),
    ("RUN --methods er", "No such option: --methods"),
    ("RUN --method ser er", "unexpected extra argument(s) (er)"),
    ("RUN --method er --method sre", "unknown method 'sre'; did you mean 'ser'?"),
    ("RUN --method er,ser --set method.alpha=0.3", "er has no setting 'alpha', ser has; use ser.alpha"),
    ("RUN --method er --set ser.alpha=0.3", "ser.alpha is for ser, which is not among the methods (er)"),
    ("RUN --method notes.txt:Thing", "unknown method 'notes.txt:Thing'"),
    ("RUN --net mine.py:net", "no file mine.py in"),
    ("RUN --out a --out b", "--out is given 2 times"),
    ("RUN --seeds 2 --seeds 3", "--seeds is given 2 times"),
    ("RUN --recipe best", "no recipe 'best' for split-digits ser; see: ser list recipes"),
    ("RUN --protocol cpu", "no recipe 'cpu' for split-digits ser; there is one for seq-cifar10"),
    ("RUN --jobs two", "Invalid value for '--jobs'"),
    ("RUN --checkpoint-every 5x", "--checkpoint-every takes 5m, 90s, 2h or a number of steps"),
    ("RUN --config nowhere.toml", "nowhere.toml: missing; give a TOML file"),
    ("RUN --config notes.txt", "notes.txt: not readable as TOML"),
    ("RUN --set train.lr=nan", "train.lr must be a finite number, got 'nan'"),
    ("RUN --set method.alpha=1e999", "method.alpha must be a finite number, got '1e999'"),
    ("RUN --set method.terms=current,current", "method.terms must name each term once"),
    ("RUN --set train.weight_decay=-1", "train.weight_decay must be >= 0.0"),
    ("RUN --memory 9223372036854775807", "there was not enough memory"),
    ("RUN --memory ''", "--memory has no value"),
    ("RUN --net ,", "--net has no value"),
    ("RUN --method ,", "--method must name at least one method"),
    ("RUN --net résnet", "did you mean 'resnet18'?"),
    ("RUN --log ''", "--log names no logger"),
    ("RUN --device gpu", "device 'gpu' is not available"),
    ("RUN --shard 4/3", "--shard takes K/N with K from 1 to N"),
    ("RUN --out notes.txt", "no state can be kept there (Not a directory)"),
    ("RUN --config nothing.toml", "nothing.toml: has no options"),
    ("RUN --config empty", "empty: not a regular file"),
    ("tune split-digits --method ''", "--method must name at least one method"),
    ("tune split-digits --validation nan", "--validation must be > 0 and < 1, got nan"),
    ("tune split-digits --space empty", "--space empty: cannot be read (Is a directory)"),
    ("tune split-digits --set train.lr=0.1,0.2", "ser tune takes one value of each setting"),
    # Streams
    ("RUN --set data.first=4", "data.first needs data.step"),
    ("RUN --set data.order=9,8", "data.order must be 'shuffled' or the numbers of all 10 classes"),
    ("RUN --set data.tasks=9", "data.tasks must be 1 to 5"),
    ("RUN --set data.side=10", "data.side is for one's own data"),
    ("RUN --set data.online=maybe", "data.online must be true or false"),
    ("RUN -m lwf --set data.blurry=0.1", "lwf needs tasks with classes of their own"),
    ("run", "Missing argument"),
    ("run split_digits", "did you mean 'split-digits'?"),
    ("run folder:nowhere", "nowhere is missing; check the path after folder:"),
    ("run folder:empty", "empty must hold a folder for each class"),
    ("run csv:notes.txt", "must begin with the header path,label"),
    ("run folder:loop", "loop cannot be read: Too many levels of symbolic links"),
    ("run p-mnist --data empty --device cpu", "mnist not found in empty; run: ser data get mnist"),
    ("run p-mnist --method lwf", "lwf needs disjoint classes per task; p-mnist is Domain-IL"),
    # Records
    ("compare RECORD --picture x.txt", "--picture must be a file that ends in .png"),
    ("compare RECORD --picture .", "got a folder"),
    ("compare RECORD --metric accuracy", "did you mean 'average_accuracy'?"),
    ("compare RECORD --against er", "unknown method 'er'"),
    ("compare RECORD --metric ,", "--metric names no metric"),
    ("compare RECORD --picture x.png --csv", "--csv draws no picture, got --picture x.png"),
    ("compare RECORD --against ser --picture x.png", "--against draws no picture"),
    ("compare RECORD --spread std", "'std' is not one of 'interval', 'sd'"),
    ("compare linked", "passed over linked/seed-0.json: not readable (Too many levels of symbolic links)"),
    ("compare RECORD --against ''", "unknown method ''"),
    ("compare RECORD --picture notes.txt/x.png", "the picture cannot be written (Not a directory)"),
    ("compare RECORD --spread sd --spread sd", "--spread is given 2 times"),
    ("show empty", "no records in empty"),
    ("show table2/p-mnist/m200/ser/domain-il --out empty", "no records in empty"),
    ("show table2", "See: ser reproduce list table2"),
    ("reproduce report --csv --json", "--csv and --json exclude each other"),
    ("compare RECORD --csv --json", "--csv and --json exclude each other"),
    ("show RECORD --config --csv", "--config and --csv exclude each other"),
    ("show table2/p-mnist/m200/sre/domain-il", "did you mean 'table2/p-mnist/m200/ser/domain-il'?"),
    ("report RECORD -o x.pdf", "--out must be a file that ends in .html, .htm, got 'x.pdf'"),
    ("report RECORD -o .", "--out must be a file that ends in .html"),
    ("report RECORD -o notes.txt/x.html", "notes.txt/x.html: cannot be written (Not a directory)"),
    ("report RECORD --margin inf", "less than or equal to 100"),
    ("report RECORD --margin two", "Invalid value for '--margin'"),
    ("reproduce table9", "No such command 'table9'"),
    ("reproduce table2 --only q-mnist", "unknown word in --only 'q-mnist'; did you mean"),
    ("reproduce report --readme --out rec", "no README.md in here"),
    ("reproduce report --readme", "results: no such file or folder"),
    ("reproduce report --out empty", "no records in empty; make some with: ser run"),
    ("reproduce report --out notes.txt", "no records in notes.txt"),
    ("reproduce report --out nowhere", "nowhere: no such file or folder"),
    ("reproduce report --out rec --to notes.txt", "notes.txt: cannot be written (Not a directory)"),
    ("reproduce list --protocol half", "unknown protocol 'half'"),
    ("resume notes.txt", "notes.txt: no stopped run in there"),
    ("state verify loop", "loop: no checkpoints in there"),
    ("resume empty", "no stopped run in there"),
    ("data get digits --data", "requires an argument"),
    ("data get mnist --data notes.txt", "notes.txt/mnist cannot be written"),
    ("data get mnits", "did you mean 'mnist'?"),
    # Kept models
    ("learn new --data nowhere", "nowhere is missing"),
    ("learn new --data data/may --set train.lr=0.1 --set train.lr=0.2", "two values, 0.1 and 0.2"),
    ("learn new --data data/may --lr 0.1 --set train.lr=0.2", "contradicts the option with the value 0.1"),
    ("learn new --data data/may --classes a,a", "--classes names 'a' twice"),
    ("learn new --data data/may --memory lots", "such as 500 or 20MB"),
    ("learn new --data data/may --channels 2", "channels must be 1 (grey) or 3 (colour)"),
    ("predict kept nowhere.png", "nowhere.png is missing"),
    ("predict kept data/may --version v99", "no version 'v99'; there are: v1, v2, v3, candidate"),
    ("evaluate kept --data data/may --confusion x.txt", "--confusion must be a file that ends in .png"),
    ("evaluate kept --data data/may --confusion empty", "got a folder"),
    ("evaluate kept --data empty", "empty must hold a folder for each class"),
    ("rollback kept v99", "no version 'v99'"),
    ("export kept empty", "empty: a folder is there; name a file, such as model.onnx"),
    ("export kept .", "a folder is there"),
    ("export kept x.txt", "its name must end in .onnx"),
    ("learn new --data data/may --set method.alpha=inf", "method.alpha must be a finite number"),
    ("learn notes.txt --data data/may", "a file where the folder of a model should be"),
    ("learn new --data data/may --merge-case --keep-case", "contradict each other"),
    ("predict kept empty", "empty must hold images"),
    ("predict kept loop", "loop cannot be read"),
    ("predict kept data/may --device cuda:99", "device 'cuda:99' is not available"),
    ("status notes.txt", "notes.txt: no model is kept there"),
    ("history rec", "rec: no model is kept there"),
    ("diff kept v1 v99", "no version 'v99'"),
    ("drift kept --data data/may --rate nan", "must be between 0 and 1, got nan"),
    ("drift kept --data data/may --rate 0.3 --examples x.txt", "--examples must be a file that ends in .png"),
    ("drift kept --data data/may --data nowhere --rate 0.3", "--data nowhere: no such file or folder"),
    ("review kept --data nowhere", "--data nowhere: no such file or folder"),
    ("review kept --data data/may --out data", "data: the folder is not empty"),
    ("serve kept --host 0.0.0.0", "needs a token of 16 characters or more"),
    ("serve kept --timeout nan", "greater than or equal to 0.1"),
    ("memory kept show --out notes.txt", "--out must be a file that ends in .png, got 'notes.txt'"),
    ("memory kept export notes.txt", "notes.txt: a file is there"),
    ("doctor extra", "unexpected extra argument(s) (extra)"),
    ("memory kept forget --id 99999", "no remembered sample has such a label, source, id or pixels"),
]  # fmt: skip


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wrong")
    for name in ("model/kept", "model/data", "record"):
        shutil.copytree(FIXTURES / name, folder / Path(name).name)
    (folder / "record").rename(folder / "rec")
    (folder / "notes.txt").write_text("hi\n")
    (folder / "nothing.toml").touch()
    (folder / "empty").mkdir()
    (folder / "loop").symlink_to("loop")
    (folder / "linked").mkdir()
    (folder / "linked" / "seed-0.json").symlink_to("seed-0.json")
    return folder


def files_in(folder: Path) -> set[str]:
    """All files but locks, which commands that only read leave behind, too."""
    return {str(path) for path in folder.rglob("*") if "lock" not in path.name}


@pytest.mark.parametrize(("line", "told"), WRONG, ids=[line for line, _ in WRONG])
def test_a_wrong_command_is_told_in_a_line(
    line: str, told: str, ser: Ser, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(place)
    monkeypatch.setenv("COLUMNS", "300")
    before = files_in(place)
    words = shlex.split(line.replace("RUN", "run split-digits").replace("RECORD", RECORD))
    said = ser(*words)
    assert said.code in (1, 2), said
    assert told in " ".join(said.err.split()), said.err
    lines = [one for one in said.err.splitlines() if one.startswith("error: ")]
    assert len(lines) <= 1, lines
    assert files_in(place) == before
