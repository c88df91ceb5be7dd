"""What is read of a torchrun command, however it is written."""

from __future__ import annotations

import pytest
from torch.distributed.run import get_args_parser

from perdure.errors import UserError
from perdure_operator.cli.convert import torchrun
from perdure_operator.cli.convert.fields import Conversion
from perdure_operator.cli.convert.tables import TORCHRUN
from perdure_operator.cli.convert.torchrun import TorchrunCommand

SCRIPT = ("python", "-u", "train.py", "--lr", "0.1")


def read(*words: str) -> tuple[TorchrunCommand | None, list[str]]:
    conversion = Conversion()
    found = torchrun.read(words, "command", conversion)
    return found, [str(one) for one in conversion.remarks]


@pytest.mark.parametrize(
    "words",
    [
        ["torchrun", "--nproc-per-node=2", "train.py", "--lr", "0.1"],
        ["torchrun", "--nproc_per_node", "2", "--", "train.py", "--lr", "0.1"],
        ["python", "-m", "torch.distributed.run", "--nproc_per_node", "2", "train.py", "--lr", "0.1"],
        ["python", "-u", "-m", "torch.distributed.launch", "--use_env", "--nproc_per_node=2", *SCRIPT[2:]],
        ["bash", "-xc", "exec torchrun \\\n --nproc-per-node 2 --node-rank=$RANK \\\n train.py --lr '0.1'\n"],
        ["/bin/sh", "-c", "torchrun --nproc-per-node 2 --local-addr a train.py --lr 0.1"],
    ],
)
def test_the_scripts_own_command_is_left(words: list[str]) -> None:
    assert read(*words) == (TorchrunCommand(SCRIPT, processes="2"), [])


@pytest.mark.parametrize(
    ("words", "command"),
    [
        (["-m", "digits.train", "--lr", "1"], ("python", "-u", "-m", "digits.train", "--lr", "1")),
        (["--no-python", "./train", "-m"], ("./train", "-m")),
        (["train.py", "--lr=$(LR)"], ("python", "-u", "train.py", "--lr=$(LR)")),
        (["-t3", "train.py"], ("python", "-u", "train.py")),
        (["-r", "3", "train.py"], ("python", "-u", "train.py")),
    ],
)
def test_what_is_not_a_script_of_python_is_run_as_it_is(words: list[str], command: tuple[str, ...]) -> None:
    found, _ = read("torchrun", *words)
    assert found is not None
    assert found.command == command


@pytest.mark.parametrize(
    "words",
    [
        ["python", "train.py"],
        ["sh", "-c", "python train.py"],
        ["python", "-m", "digits"],
        [],
        ["/opt/conda/bin/python3.11", "train.py", "--deepspeed", "stage2.json"],
    ],
)
def test_another_command_is_left_alone(words: list[str]) -> None:
    assert read(*words) == (None, [])


@pytest.mark.parametrize(
    "words",
    [
        ["sh", "-c", "cd /data && torchrun train.py"],
        ["sh", "-c", "cd /data\ntorchrun train.py"],
        ["sh", "-c", "torchrun train.py > log"],
        ["sh", "-c", "torchrun --max-restarts 3 train.py --lr=$LR"],
        ["sh", "-c", "torchrun train.py # --lr 0.1"],
        ["sh", "-c", "torchrun train.py /data/*.txt"],
        ["sh", "-c", "torchrun train.py part-?"],
        ["sh", "-c", "torchrun train.py part-[0-9]"],
        ["bash", "-c", "torchrun train.py part-{0..9}"],
        ["sh", "-c", "torchrun train.py ~/data"],
        ["accelerate", "launch", "train.py"],
        ["accelerate-launch", "train.py"],
        ["python", "-m", "accelerate.commands.launch", "train.py"],
        ["sh", "-c", "pip list\naccelerate \\\n launch train.py"],
        ["tune", "run", "full_finetune_distributed"],
        ["bash", "run.sh"],
        ["/opt/digits/start"],
        ["sh", "-c", "it's not closed"],
        ["deepspeed", "train.py"],
    ],
)
def test_a_launcher_that_cannot_be_taken_away_is_told(words: list[str]) -> None:
    found, (remark,) = read(*words)
    assert found is None
    assert "write the script's own command" in remark


@pytest.mark.parametrize(
    ("words", "interpreter"),
    [
        (["python3", "-m", "torch.distributed.run"], "python3"),
        (["/usr/bin/python3.11", "-u", "-m", "torch.distributed.run"], "/usr/bin/python3.11"),
    ],
)
def test_the_script_keeps_its_interpreter(words: list[str], interpreter: str) -> None:
    assert read(*words, "train.py") == (TorchrunCommand((interpreter, "-u", "train.py")), [])


def test_torchruns_own_interpreter_is_the_one_beside_it_and_that_is_told() -> None:
    found, (remark,) = read("/opt/conda/bin/torchrun", "train.py")
    assert found == TorchrunCommand(("/opt/conda/bin/python", "-u", "train.py"))
    assert "/opt/conda/bin/python" in remark
    assert read("/opt/conda/bin/torchrun", "--no-python", "./train")[1] == []


def test_a_hash_within_a_word_of_a_shell_is_no_comment() -> None:
    found, told = read("sh", "-c", "torchrun train.py --tag=a#1 --lr 0.1")
    assert found == TorchrunCommand(("python", "-u", "train.py", "--tag=a#1", "--lr", "0.1"))
    assert told == []


def test_what_is_quoted_needs_no_shell() -> None:
    found, told = read("sh", "-c", "torchrun train.py '*.txt' \"a?\" \\[b] --json='{\"a\": 1}'")
    assert found == TorchrunCommand(("python", "-u", "train.py", "*.txt", "a?", "[b]", '--json={"a": 1}'))
    assert told == []


def test_a_script_that_was_given_its_local_rank_is_told_to_read_it() -> None:
    found, (remark,) = read("python", "-m", "torch.distributed.launch", "train.py")
    assert found == TorchrunCommand(("python", "-u", "train.py"))
    assert "read LOCAL_RANK" in remark


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--nproc-per-nod", "2", "train.py"], "torchrun has no option --nproc-per-nod"),
        (["--nnodes"], "--nnodes has no value"),
        (["--nnodes", "2"], "without a script"),
        (["--max-restarts", "many", "train.py"], "a whole number is expected"),
    ],
)
def test_a_mistake_is_named(words: list[str], says: str) -> None:
    with pytest.raises(UserError) as refused:
        read("torchrun", *words)
    assert says in str(refused.value)


def test_the_table_has_all_options_of_torchrun_and_knows_which_have_a_value() -> None:
    known: set[str] = set()
    flags: set[str] = set()
    short: dict[str, str] = {}
    for action in get_args_parser()._actions:
        names = {name.replace("_", "-") for name in action.option_strings}
        long = {name for name in names if name.startswith("--")}
        known |= long
        flags |= long if action.nargs == 0 else set()
        short |= {name: next(iter(long)) for name in names - long}
    assert known - TORCHRUN.keys() == set(), "torchrun has it, and the table does not"
    assert flags == torchrun.FLAGS & known
    assert short == torchrun.SHORT
