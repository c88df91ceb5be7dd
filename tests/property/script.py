"""A Program as the Python script that is run: a reader of a failing seed sees exactly the executed code.

Pure text. If a rule of docs/concepts/exactness.md demands something of a script (gradients are cleared above the batch
loop, nothing is changed before an epoch's last poll), the text obeys it: the property is about scripts that obey.
"""

from __future__ import annotations

from collections.abc import Iterator
from textwrap import indent

from tests.property.grammar import Evaluation, Phase, Program

HEAD = """\
import random

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader, Dataset

import perdure
from perdure import Session, remaining_epochs_until
from tests.property.diary import Diary, fingerprint

diary = Diary()
torch.manual_seed(1)
random.seed(2)
np.random.seed(3)


class Samples(Dataset):
    def __init__(self, size, seed, augment=False):
        generator = torch.Generator().manual_seed(seed)
        self.inputs = torch.randn(size, 4, generator=generator)
        self.augment = augment

    def __len__(self):
        return len(self.inputs)

    def __getitem__(self, index):
        noise = 0.1 * torch.randn(4) if self.augment else 0.0
        return self.inputs[index] + noise, self.inputs[index].sum(), index


def criterion(outputs, targets):
    return functional.mse_loss(outputs.squeeze(1), targets)


def of_rank_0(value):
    tensor = torch.tensor([value], dtype=torch.float64)
    if session.world > 1:
        torch.distributed.broadcast(tensor, 0)
    return tensor.item()
"""

SCHEDULER = {
    "StepLR": "lr_scheduler.StepLR(optimizer, 3, 0.8)",
    "CosineAnnealingLR": "lr_scheduler.CosineAnnealingLR(optimizer, {steps})",
    "OneCycleLR": "lr_scheduler.OneCycleLR(optimizer, 0.02, total_steps={steps} + 1)",
    "SequentialLR": (
        "lr_scheduler.SequentialLR(optimizer, [lr_scheduler.ConstantLR(optimizer, 0.5, 3),"
        " lr_scheduler.ExponentialLR(optimizer, 0.95)], [3])"
    ),
    "ReduceLROnPlateau": "lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)",
}


def script(program: Program) -> str:
    """The whole file."""
    body = "\n".join(_main(program))
    if program.with_:
        body = "with session:\n" + indent(body, "    ")
    return "\n".join([HEAD, *_set_up(program), "", "", *_functions(program), body, 'diary.close("end")', ""])


def _set_up(program: Program) -> Iterator[str]:
    exact = "deterministic=True" if program.world > 2 else ""
    yield f"session = Session.from_env({exact})"
    layers = [
        "nn.Linear(4, 6)",
        "nn.BatchNorm1d(6)" * program.batchnorm,
        "nn.Tanh()",
        "nn.Dropout(0.3)" * program.dropout,
    ]
    yield f"net = nn.Sequential({', '.join([layer for layer in layers if layer])}, nn.Linear(6, 1))"
    yield "model = session.wrap(net)"
    kind = "Adam(net.parameters(), lr=0.01)" if program.adam else "SGD(net.parameters(), lr=0.01, momentum=0.9)"
    yield f"optimizer = torch.optim.{kind}"
    registered = ["net=net", "optimizer=optimizer"]
    if program.scheduler:
        yield f"scheduler = {SCHEDULER[program.scheduler].format(steps=program.steps)}"
        registered.append("scheduler=scheduler")
    if program.averaged:
        yield "average = torch.optim.swa_utils.AveragedModel(net)"
        registered.append("average=average")
    yield f"session.register({', '.join(registered)})"
    yield "valid_set = Samples(9, 20)"
    if program.source not in ("in the loop", "steps"):
        yield f"train = {_loader(program)}"
    if program.source in ("one after another", "zip"):
        yield f"other = {_loader(program, 'other', program.samples - program.batch)}"
    if program.summed:
        names = ("above", "scores", "often", "grand", "found")
        yield from (f"{name} = perdure.accumulator(session, {name!r})" for name in names)
    if program.positioned:
        yield f'valid = session.loader(valid_set, {program.world * 3}, name="valid", train=False)'
    elif any(evaluation.shared for evaluation in program.evaluations):
        yield f'valid = session.loader(valid_set, {program.world * 3}, name="valid", shuffle=False)'


def _loader(program: Program, name: str = "train", size: int | None = None) -> str:
    of_epoch = size or program.samples
    options = f"name={name!r}, shuffle={program.shuffle}, drop_last={program.drop_last}"
    if program.reader and name == "train":
        of_epoch -= of_epoch % program.batch if program.drop_last else 0
        options += f", per_epoch={of_epoch}, rewind={program.reader == 'rewind'}"
        size = of_epoch * sum(phase.epochs for phase in program.phases)
    samples = f"Samples({size or program.samples}, {len(name)}, augment={program.augment})"
    return f"session.loader({samples}, {program.batch}, {options})"


def _functions(program: Program) -> Iterator[str]:
    for number, evaluation in enumerate(program.evaluations):
        yield from _evaluate(program, str(number), evaluation)
    if program.spots:
        yield from _evaluate(program, "spot", Evaluation(dropout=program.dropout))
    if program.hooks:
        yield from ('@session.on("init")', "def halve():", "    with torch.no_grad():")
        yield from ("        net[0].weight.mul_(0.5)", "", "")
        yield from ('@session.on("epoch")', "def count(epoch):")
        yield from ('    session.state["told"] = session.state.get("told", 0) + 1', "", "")


def _evaluate(program: Program, number: str, evaluation: Evaluation) -> Iterator[str]:
    inputs = "functional.dropout(inputs, 0.5)" if evaluation.dropout else "inputs"
    shared = evaluation.shared or program.positioned
    yield f"def evaluate_{number}():"
    yield "    total = 0.0"
    yield "    model.eval()"
    yield "    with torch.no_grad():"
    yield f"        for inputs, targets, ids in {'valid' if shared else 'DataLoader(valid_set, 3)'}:"
    yield f"            value = criterion(model({inputs}), targets).item()"
    yield (
        "            found.add(value=value, n=len(ids), which=sum(9**i for i in ids.tolist()))"
        if program.summed
        else "            total += value"
    )
    yield "            diary.moment()"
    if evaluation.poll:
        yield "            perdure.poll(session)"
    yield from ("    model.train()", f"    return {'found.sum()' if program.summed else 'total'}", "", "")


def _main(program: Program) -> Iterator[str]:
    if program.restore:
        yield "perdure.restore(session)"
    for number, phase in enumerate(program.phases):
        if number and not program.scheduler:
            yield from ("for group in optimizer.param_groups:", '    group["lr"] = 0.005')
        if "outside" in program.spots:
            yield f'diary.write("outside", {number}, evaluate_spot())'
        yield f"for epoch in {_loop(program, number)}:"
        yield from _indented(_epoch(program, number, phase))
    if "outside" in program.spots:
        yield f'diary.write("outside", {len(program.phases)}, evaluate_spot())'
    yield "shared = net.state_dict().values() if session.rank == 0 else net.parameters()  # buffers are rank 0's"
    grand = ", grand.sum()" if program.summed else ""
    yield f'diary.write("final", session.steps_done, fingerprint(*shared){grand})'


def _loop(program: Program, number: int) -> str:
    if program.until:
        return f"remaining_epochs_until({sum(phase.epochs for phase in program.phases[: number + 1])})"
    return f"session.epochs({_goal(program, program.phases[number])})"


def _goal(program: Program, phase: Phase) -> str:
    if phase.end == "max_steps":
        return f"{phase.epochs}, max_steps={program.batches * phase.at + 1}"
    return str(phase.epochs)


def _epoch(program: Program, number: int, phase: Phase) -> Iterator[str]:
    yield f'diary.write("head", {number}, epoch)'
    if program.head_noise:
        yield "torch.rand(2), np.random.rand(), random.random()"
    yield "optimizer.zero_grad()"
    if program.summed:
        yield from ("above.add(n=1)", "scores.add(epoch=epoch)", "head = above.sum()", "above.add(head=1)")
    if "above" in program.spots:
        yield "spot_above = evaluate_spot()"
    yield from _batches(program)
    yield f'diary.write("rest", {number}, epoch)'
    if program.summed:
        yield from ("whole = scores.sum()", "scores.add(rest=1)")
    yield from _rest(program, number)
    if program.best:
        yield 'session.state["best"] = session.state.get("best", 0.5) / 2 + session.steps_done'
    read = "head, between, whole, " if program.summed else ""
    read += "".join(f"spot_{spot}, " for spot in program.spots if spot != "outside")
    yield f'diary.write("epoch", {number}, epoch, {read}{", ".join(_told(program))})'
    if phase.end in ("break", "stop"):
        yield f"if epoch == {phase.at}:"
        yield "    break" if phase.end == "break" else '    session.stop("enough")'


def _rest(program: Program, number: int) -> Iterator[str]:
    """Evaluations below the batch loop, and the step of a scheduler that waits for them."""
    below = [index for index, evaluation in enumerate(program.evaluations) if not evaluation.every]
    for index in below:
        yield f"value_{index} = evaluate_{index}()"
    for index in below:
        yield f'diary.write("value", {number}, epoch, value_{index}, {index})'
    if program.scheduler == "ReduceLROnPlateau":
        measured = [f"value_{index}" + "['value']" * program.summed for index in below]
        yield f"scheduler.step(of_rank_0({measured[0] if measured else 'float(session.steps_done)'}))"
    elif program.scheduler and program.place == "epoch":
        yield "scheduler.step()"


def _batches(program: Program) -> Iterator[str]:
    body = list(_indented(_body(program)))
    indexed = program.accumulate > 1 or program.cut
    if program.source == "steps":
        yield f"for i in session.steps({program.batches}):"
        yield f"    inputs = torch.randn({program.batch // program.world}, 4)"
        yield "    targets, ids = inputs.sum(1), torch.tensor([epoch, i])"
    elif program.source == "zip":
        yield "for (inputs, targets, ids), (more, more_targets, more_ids) in zip(train, other):"
        yield "    inputs, targets = torch.cat([inputs, more]), torch.cat([targets, more_targets])"
        yield "    ids = torch.cat([ids, more_ids])"
    else:
        train = _loader(program) if program.source == "in the loop" else "train"
        if program.source == "in the loop":
            yield f"train = {train}"
        if indexed:
            yield "for i, (inputs, targets, ids) in enumerate(train, train.batch_index):"
        else:
            yield "for inputs, targets, ids in train:"
    yield from body
    if program.noise_between:
        yield "torch.rand(2), np.random.rand(), random.random()"
    if program.summed:
        yield from ("between = scores.sum()", "scores.add(between=0.1)")
    if "between" in program.spots:
        yield "spot_between = evaluate_spot()"
    if program.source == "one after another":
        yield "for inputs, targets, ids in other:"
        yield from body


def _body(program: Program) -> Iterator[str]:
    yield "diary.moment()"
    yield "loss = criterion(model(inputs), targets)"
    yield f"session.weighted(loss / {program.accumulate}).backward()"
    yield 'diary.write("batch", session.steps_done, ids.tolist(), loss.item())'
    if program.summed:
        yield from (f"{name}.add(loss=loss.item(), n=len(ids))" for name in ("scores", "often", "grand"))
    if program.accumulate == 1:
        yield from _step(program)
    else:
        last = "" if program.leftovers else f" or i + 1 == {_length(program)}"
        yield f"if (i + 1) % {program.accumulate} == 0{last}:"
        yield from _indented(_step(program))
    if program.cut:
        yield f"if i + 1 == {program.cut}:"
        yield "    break"
    if program.asks:
        yield from ("if perdure.should_stop(session):", "    raise SystemExit")


def _length(program: Program) -> str:
    return str(program.batches) if program.source == "steps" else "len(train)"


def _step(program: Program) -> Iterator[str]:
    yield "optimizer.step()"
    yield "optimizer.zero_grad()"
    if program.averaged:
        yield "average.update_parameters(net)"
    scheduled = program.scheduler and program.scheduler != "ReduceLROnPlateau"
    if scheduled and program.place == "before":
        yield "scheduler.step()"
    yield "diary.moment()"
    yield "session.step()"
    if scheduled and program.place == "after":
        yield "scheduler.step()"
    if program.counted:
        yield 'session.state["count"] = session.state.get("count", 0) + 1'
    yield f'diary.write("step", {", ".join(_told(program))})'
    if program.summed:
        yield "if session.steps_done % 3 == 0:"
        yield '    diary.write("often", session.steps_done, often.sum())'
    for index, evaluation in enumerate(program.evaluations):
        if evaluation.every:
            yield f"if session.steps_done % {evaluation.every} == 0:"
            yield f'    diary.write("evaluation", session.steps_done, evaluate_{index}(), {index})'
    if program.save_every:
        yield f"if session.steps_done % {program.save_every} == 0:"
        yield "    session.save()"


def _told(program: Program) -> Iterator[str]:
    yield "session.steps_done"
    yield 'optimizer.param_groups[0]["lr"]'
    if program.noise:
        yield from ("torch.rand(1).item()", "float(np.random.rand())", "random.random()")
    if program.counted:
        yield 'session.state.get("count", 0)'
    if program.best:
        yield 'session.state.get("best")'
    if program.hooks:
        yield 'session.state.get("told", 0)'
    if program.averaged:
        yield "fingerprint(*average.parameters())"


def _indented(lines: Iterator[str]) -> Iterator[str]:
    return (f"    {line}" for line in lines)
