"""The float64 oracle of all engines against transformers."""

from __future__ import annotations

import pytest
import torch

from hybridgen.models.reference import reference_logits
from tests.models.peer_models import FAMILIES, family_peer
from tests.models.tiny_model import random_ids, relative_error


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_at_every_position_are_those_of_transformers(family):
    peer = family_peer(family)
    ids = torch.from_numpy(random_ids(peer.config, 90)).long()
    found = reference_logits(peer.config, peer.tensors, ids)
    assert relative_error(found, peer.logits(ids)) < 2e-5


def test_a_context_within_that_of_training_takes_the_short_factors():
    peer = family_peer("phi3_longrope")
    ids = torch.from_numpy(random_ids(peer.config, 50)).long()
    short = reference_logits(peer.config, peer.tensors, ids, max_positions=64)
    long = reference_logits(peer.config, peer.tensors, ids, max_positions=65)
    expected = peer.logits(ids)
    assert relative_error(short, expected) < 2e-5
    assert relative_error(long, expected) > 1e-2
