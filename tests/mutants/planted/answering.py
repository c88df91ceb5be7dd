"""Bugs in reading the API server's answers: statuses, headers, and bodies that are whole, odd or cut."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant

_TESTS: Final = ("tests/unit/operator/cluster/test_kube.py",)

ANSWERING: Final = (
    Mutant(
        "Retry-After is not read",
        "perdure_operator.cluster:_retry_after",
        "return min(float(text), _LONGEST_WAIT) if text.isascii() and text.isdigit() else None",
        "return None",
        ("api-throttles", "drain"),
        _TESTS,
    ),
    Mutant(
        "an error of the server is taken for a final refusal",
        "perdure_operator.cluster:_error_type",
        "case _ if status >= 500:\n            return Unavailable",
        "case _ if status >= 500:\n            return Invalid",
        ("api-errors", "edit-template", "delete-and-apply"),
        _TESTS,
    ),
    Mutant(
        "what the server has forgotten is taken for a mistake in the job",
        "perdure_operator.cluster:_error_type",
        "case 400 | 422:",
        "case 400 | 410 | 422:",
        ("api-forgets", "operator-crash"),
        _TESTS,
    ),
    Mutant(
        "a conflict is taken for a success",
        "perdure_operator.cluster:_body",
        "if status >= 300:",
        "if status >= 300 and status != 409:",
        ("api-conflicts", "scale"),
        _TESTS,
    ),
    Mutant(
        "a proxy's 404 is taken for a deletion",
        "perdure_operator.cluster:_error_type",
        "return NotFound if reason == 'NotFound' else Unavailable",
        "return NotFound",
        ("api-behind-a-proxy", "delete-pod", "operator-crash", "scale", "drain", "code-failure"),
        _TESTS,
    ),
    Mutant(
        "a refusal whose body breaks off is none",
        "perdure_operator.cluster:_read",
        "if answer.status < 300:\n            raise",
        "raise",
        ("api-errors-without-status", "drain"),
        _TESTS,
    ),
)
