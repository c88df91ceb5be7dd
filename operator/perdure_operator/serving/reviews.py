"""What the API server says about a token. Used by `metrics.access` and `reports.tokens`."""

from __future__ import annotations

from typing import Final, Protocol

from perdure_operator.cluster.protocol import Json, Resource

TOKEN_REVIEWS: Final = Resource("authentication.k8s.io", "v1", "tokenreviews", namespaced=False)
ANSWER_SECONDS: Final = 5.0
"""For all reviews of a request, waiting for earlier ones included."""


class Reviewer(Protocol):
    """The part of the API server that answers reviews."""

    async def review(self, resource: Resource, body: Json) -> Json:
        """Send a review and return it with its status. Raises ApiError."""


async def review_token(api: Reviewer, token: str, *audiences: str) -> Json:
    """The status of a TokenReview: for these audiences, or for the API server's own. Raises ApiError."""
    spec = {"token": token, **({"audiences": list(audiences)} if audiences else {})}
    body = {"apiVersion": TOKEN_REVIEWS.api_version, "kind": "TokenReview", "spec": spec}
    return status_of(await api.review(TOKEN_REVIEWS, body))


def status_of(review: Json) -> Json:
    """A review's status; {} if there is none."""
    status = review.get("status")
    return status if isinstance(status, dict) else {}
