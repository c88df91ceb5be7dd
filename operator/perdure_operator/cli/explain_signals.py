"""The table of signals in words, and what one node or pod would cause. Pure. Called by `cli`."""

from __future__ import annotations

from perdure_operator.api.signal_rows import REACTIONS, Reaction, SignalRow
from perdure_operator.decide.signals import rows_shown, rows_shown_by_pod
from perdure_operator.state.signal_table import SignalTable
from perdure_operator.state.snapshot import NodeView, PodView


def describe_table(in_force: SignalTable) -> str:
    """One line for each row, in the order in which they are asked."""
    lines = [("NAME", "SOURCE", "MATCHES", "REACTION", "SET BY")]
    lines += [(row.name, row.source.value, row.matched or "-", _reaction(row), row.set_by) for row in in_force.rows]
    widths = [max(len(line[column]) for line in lines) for column in range(4)]
    return "".join(
        "  ".join([*(word.ljust(width) for word, width in zip(line, widths, strict=False)), line[4]]).rstrip() + "\n"
        for line in lines
    )


def describe_node(in_force: SignalTable, node: NodeView) -> str:
    """What members on this node would do."""
    shown = rows_shown(in_force, node)
    if not shown:
        return f"node {node.name} shows no enabled signal: members stay\n"
    lines = [_line(row, words) for row, words in shown]
    if any(row.unless_tolerated for row, _ in shown):
        lines.append("a member that tolerates a taint is not moved by a row with unlessTolerated")
    return "".join(f"{line}\n" for line in lines)


def describe_pod(in_force: SignalTable, pod: PodView) -> str:
    """What this pod would do, beside what its node causes."""
    shown = rows_shown_by_pod(in_force, pod)
    if not shown:
        return f"pod {pod.name} shows nothing that an enabled row is about; its node may\n"
    return "".join(f"{_line(row, words)}\n" for row, words in shown)


def _line(row: SignalRow, words: str) -> str:
    return f"{row.name}: {words}: {_reaction(row)}: {REACTIONS[row.reaction]}"


def _reaction(row: SignalRow) -> str:
    """With its deadline, and whether it is in force."""
    text = row.reaction.value
    if row.reaction is Reaction.VACATE_BY_DEADLINE:
        where = "value" if row.deadline_in_value else "NodeClaim" if row.deadline_in_claim else ""
        text += f"({where or f'{row.deadline_seconds} s'})"
    return text if row.enabled else f"{text}, disabled"
