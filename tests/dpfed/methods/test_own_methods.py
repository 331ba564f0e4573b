"""Methods of one's own: what they get, and which faults a look at the chain refuses or an audit refutes.

The audits are seeded; a correct round is failed with probability at most 5%, what is planted here always.
"""

import re
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
import torch
from reference.own_schemes import Honest, SharesAScale
from refusals import refused

from dpfed import compress, methods, stages
from dpfed.audit.round.method_setting import audit_upload, audited_methods
from dpfed.clients.optimisers import Sgd
from dpfed.config.tables import parse
from dpfed.errors import ConfigError
from dpfed.mechanisms.gaussian import GaussianNoise
from dpfed.mechanisms.soundness import require_forgetful
from dpfed.methods import catalogue
from dpfed.methods.catalogue import METHODS, all_methods, method_specification
from dpfed.runs.experiment import build
from dpfed.stages.chain import Stages
from dpfed.stages.clip import Clip
from dpfed.stages.project import Project

from ...rounds import only_state as run_round
from ...rounds import preset

pytestmark = pytest.mark.slow_but_one_in(3)

EXAMPLE = Path(__file__).parents[3] / "examples" / "own_compressor.py"
SMALL = ("model.hidden=[8]", "federation.clients=12", "federation.cohort=6", "federation.rounds=1", "local.epochs=1")
PRIVATE = ("privacy.clip_norm=1", "privacy.noise_multiplier=1")
UPLOADS = (*PRIVATE, "privacy.release=uploads")


@pytest.fixture
def honest():
    return compress.register("honest")(Honest)


def built(name, *settings):
    return build(preset(f"{name}-digits", *SMALL, *settings))


def registered_as(name, makes, **specification):
    methods.register(name, **{"scheme": "honest", **specification})(makes)


def whole(s):
    return s.updates(stages.SendAll(size=s.size))


def test_a_scheme_is_a_method_and_has_presets(honest):
    assert list(all_methods()) == [*METHODS, "honest"]
    specification = method_specification("honest")
    assert specification.unbiased
    assert specification.what.startswith("Three levels")
    assert specification.nominal_bits_per_parameter == pytest.approx(1.6, rel=0.01)
    assert "honest" in audited_methods()
    assert "honest-digits" in catalogue.preset_names()
    assert "privacy" not in catalogue.preset_tables("honest-mnist")


@pytest.mark.parametrize(
    ("settings", "chain"),
    [
        ((), "Project > DropNotFinite > Encode > Weigh"),
        (PRIVATE, "Project > Encode > Clip > GaussianNoise"),
        (UPLOADS, "Project > Clip > GaussianNoise > Encode"),
    ],
)
def test_its_chains_are_those_of_a_quantiser(honest, settings, chain):
    experiment = built("honest", *settings)
    assert repr(experiment.method.stages) == chain
    after = run_round(experiment.start, experiment.method, seeds=experiment.seeds, ledger=None)
    assert not torch.equal(after.broadcast, experiment.start.broadcast)


def test_presets_hold_the_tables_that_were_given(honest):
    registered_as("mine", whole, sparse="yes", privacy="required", preset={"method": {"keep": 0.3}})
    tables = catalogue.preset_tables("mine-digits")
    assert tables["method"] == {"name": "mine", "keep": 0.3}
    assert tables["privacy"] == catalogue.preset_tables("dp-fedavg-digits")["privacy"]
    with pytest.raises(ConfigError, match=r"without \[privacy\]"):
        build(parse({key: value for key, value in tables.items() if key != "privacy"}, source="test"))


def test_names_that_are_taken(honest):
    for name in ("qsgd", "dp-fedavg"):
        refused(ConfigError, "is the name of an existing", registered_as, name, whole)
    registered_as("mine", whole)
    with pytest.raises(ConfigError, match=r"registered twice, first by .*test_own_methods\.py, line"):
        methods.register("mine", scheme="honest")(whole)
    refused(ConfigError, "there is no such scheme", registered_as, "other", whole, scheme="nothing")
    refused(ConfigError, "64 letters", registered_as, "a name", whole)


def test_a_scheme_with_the_name_of_a_method_is_refused():
    compress.register("dp-fedavg")(Honest)
    refused(ConfigError, "name of an existing method", all_methods)


@pytest.mark.parametrize(
    ("makes", "words"),
    [
        (lambda s: None, "gives NoneType; must be"),
        (lambda s: s.nothing, "its function raises AttributeError"),
        (lambda s: Stages(s.encode(stages.SendAll(size=s.size))), "must begin with Project"),
        (lambda s: Stages(Project(choice=stages.SendAll(size=s.size))), "0 stages have a wire"),
        (lambda s: Stages(Project(choice=stages.SendAll(size=s.size)), object()), "object must have both halves"),
    ],
)
def test_a_function_that_gives_no_chain_is_one_error(honest, makes, words):
    registered_as("broken", makes)
    refused(ConfigError, words, built, "broken")


@dataclass(frozen=True, kw_only=True)
class Halved:
    """A stage of one's own: clients send half of their updates."""

    def client(self, rows, ids, now):
        return rows / 2

    def server(self, total, now):
        return total * 2


@pytest.mark.parametrize("settings", [(), PRIVATE, UPLOADS, (*PRIVATE, "aggregation.kind=masked")], ids=str)
def test_a_stage_of_ones_own_stands_behind_the_map(settings):
    methods.register("halves")(lambda s: s.updates(stages.SendAll(size=s.size), Halved()))
    experiment = built("halves", *settings)
    assert repr(experiment.method.stages).startswith("Project > Halved > ")
    same = built("fedavg" if not settings else "dp-fedavg", *settings)
    assert repr(same.method.stages) == repr(experiment.method.stages).replace(" > Halved", "")
    noted = [note for note in experiment.not_protected if "Halved changes updates before their bound" in note]
    assert len(noted) == bool(settings)  # a stage that mixes the rows of clients moves a sum by several clip norms
    assert not any("of your own" in note for note in same.not_protected)


# What a look at the chain refuses.


def clip_before_the_code(s):
    """The bound is put on what is encoded, and the code makes it longer."""
    choice = stages.SendAll(size=s.size)
    return Stages(Project(choice=choice), Clip(), s.encode(choice), s.noise(choice))


def clip_after_the_code(s):
    """Bytes leave the client before they are bounded and noised."""
    choice = stages.SendAll(size=s.size)
    return Stages(Project(choice=choice), s.encode(choice), Clip(), s.noise(choice))


@pytest.mark.parametrize(
    ("makes", "settings", "words"),
    [
        (clip_before_the_code, PRIVATE, "Clip has bounded, right before it"),
        (clip_after_the_code, UPLOADS, "is after Encode, by which their bytes are already sent"),
    ],
)
def test_an_unsound_chain_of_ones_own_is_refused(honest, makes, settings, words):
    registered_as("unsound", makes)
    refused(ConfigError, words, built, "unsound", *settings)
    refused(ConfigError, words, audit_upload, "unsound", settings=settings)


def test_the_same_order_is_sound_where_a_trusted_server_decodes(honest):
    registered_as("decoded", clip_after_the_code)
    assert built("decoded", *PRIVATE).privacy_target is not None


def test_a_code_that_mixes_clients_is_refused_in_private_runs():
    """Every row is clipped, and still one client moves all of them."""
    compress.register("mixes")(SharesAScale)
    assert built("mixes").privacy_target is None
    refused(ConfigError, "batch: client 0 sends another payload alone", built, "mixes", *PRIVATE)


# What it cannot see, and an audit refutes.


@dataclass(frozen=True, kw_only=True)
class ClipThenCode(Clip):
    """Clips, and encodes what is clipped: rows of three levels are several times as long."""

    def client(self, rows, ids, now):
        scheme = compress.get("honest")
        clipped = super().client(rows, ids, now)
        return scheme.decode(scheme.encode(clipped, seed=list(range(len(rows)))))


@dataclass(frozen=True, kw_only=True)
class CodeThenClip(ClipThenCode):
    """The same the right way round."""

    def client(self, rows, ids, now):
        scheme = compress.get("honest")
        finite = rows.nan_to_num(0, 0, 0).clamp(-1e20, 1e20)
        return Clip.client(self, scheme.decode(scheme.encode(finite, seed=list(range(len(rows))))), ids, now)


def chain_with(clip):
    def makes(s):
        choice = stages.SendAll(size=s.size)
        return Stages(Project(choice=choice), clip(), s.noise(choice), s.encode(choice))

    return makes


@pytest.mark.slow
@pytest.mark.parametrize(("clip", "verdict"), [(ClipThenCode, "fail"), (CodeThenClip, "pass")])
def test_a_bound_of_ones_own_is_noted_and_its_fault_refuted(honest, clip, verdict):
    registered_as("mine", chain_with(clip), scheme="dense")
    assert any(note.startswith("against errors in code of your own") for note in built("mine", *PRIVATE).not_protected)
    done = audit_upload("mine", settings=PRIVATE)
    assert done.verdict == verdict
    refuted = {check.name for check in done.checks if not check.passed}
    assert refuted == ({"norm", "distance"} if verdict == "fail" else set())


@dataclass(frozen=True, kw_only=True)
class LessNoise(GaussianNoise):
    """Draws half of what it charges."""

    def server(self, total, now):
        return total + (super().server(total, now) - total) / 2


@pytest.mark.slow
def test_noise_of_ones_own_that_is_short_is_refuted(honest):
    def makes(s):
        choice = stages.SendAll(size=s.size)
        noise = s.noise(choice)
        short = LessNoise(**{name: getattr(noise, name) for name in noise.__dataclass_fields__})
        return Stages(Project(choice=choice), Clip(), short, s.encode(choice))

    registered_as("short", makes, scheme="dense")
    assert "LessNoise" in " ".join(built("short", *PRIVATE).not_protected)
    assert audit_upload("short", settings=PRIVATE).verdict == "fail"


@pytest.mark.parametrize("settings", ["privacy.noise=discrete-gaussian", "run.release=true"])
def test_a_chain_of_floats_names_what_it_lacks(settings):
    methods.register("mine")(chain_with(Clip))
    refused(ConfigError, "Settings.noise without privacy.noise='gaussian'", built, "mine", *PRIVATE, settings)


# Memory.


@dataclass(frozen=True, kw_only=True)
class Remembers:
    """Local momentum that stays from round to round."""

    says: bool

    @property
    def remembers_clients(self):
        return self.says

    def client(self, rows, ids, now):
        now.memory["momentum"] = rows.mean(dim=0)[None].expand(12, -1).clone()
        return rows

    def server(self, total, now):
        return total


@pytest.mark.parametrize("says", [True, False])
def test_a_stage_that_remembers_clients_is_refused_under_privacy(says):
    methods.register("remembers")(lambda s: s.updates(stages.SendAll(size=s.size), Remembers(says=says)))
    free = built("remembers")
    after = run_round(free.start, free.method, seeds=free.seeds, ledger=None)
    assert "momentum" in after.stages
    if says:
        refused(ConfigError, r"Remembers with \[privacy\]: it remembers data of clients", built, "remembers", *PRIVATE)
        return
    private = built("remembers", *PRIVATE)
    with pytest.raises(ConfigError, match=r"memory of round to round with \[privacy\] \(momentum\)"):
        run_round(private.start, private.method, seeds=private.seeds, ledger=None)


@dataclass(frozen=True, kw_only=True)
class Covered(GaussianNoise):
    """Noise whose account is said to be for clients that are remembered."""

    covers_memory = True


def test_an_account_that_covers_memory_may_have_it():
    def makes(s):
        choice = stages.SendAll(size=s.size)
        noise = s.noise(choice)
        covered = Covered(**{name: getattr(noise, name) for name in noise.__dataclass_fields__})
        return Stages(Project(choice=choice), Remembers(says=True), Clip(), covered, s.encode(choice))

    methods.register("covered")(makes)
    experiment = built("covered", *PRIVATE)
    after = run_round(experiment.start, experiment.method, seeds=experiment.seeds, ledger=None)
    assert "momentum" in after.stages


@dataclass(frozen=True, kw_only=True)
class Trainer:
    remembers_clients: bool


def test_a_trainer_that_remembers_clients_is_refused_under_privacy():
    stages = built("dp-fedavg", *PRIVATE).method.stages
    require_forgetful(stages, Trainer(remembers_clients=False))
    with pytest.raises(ConfigError, match=r"Trainer with \[privacy\]: it remembers data of clients"):
        require_forgetful(stages, Trainer(remembers_clients=True))


@dataclass(frozen=True, kw_only=True)
class FollowsTheLast(Sgd):
    """Local training that begins where the last client ended."""

    last: dict = field(default_factory=dict, compare=False)

    def begin(self, start):
        walk = super().begin(start)
        walk.weights += self.last.get("move", 0.0)
        finish = walk.finish

        def finished():
            moves = finish()
            self.last["move"] = moves[-1].clone()
            return moves

        walk.finish = finished
        return walk


@pytest.mark.parametrize("kind", [Sgd, FollowsTheLast])
def test_local_training_of_ones_own_is_tried_before_round_1(kind):
    def course(parts):
        return kind(**{name: getattr(parts.optimizer(), name) for name in Sgd.__dataclass_fields__})

    methods.register("mine", course=course)(whole)
    built("mine")
    if kind is Sgd:
        assert any("courses" in note for note in built("mine", *PRIVATE).not_protected)
    else:
        refused(ConfigError, "depends on the clients that trained before it", built, "mine", *PRIVATE)


@dataclass(frozen=True, kw_only=True)
class Counts(Halved):
    """The next round's bound follows how many were inside this one's: a count without noise."""

    def next_state(self, state, now):
        return replace(state, clip_norm=state.clip_norm * now.tally.inside)


def test_a_stage_that_moves_the_state_beside_the_charge_is_refused():
    methods.register("counts")(lambda s: s.updates(stages.SendAll(size=s.size), Counts()))
    refused(ConfigError, "Counts changes the state of the next round", built, "counts", *PRIVATE)


def test_error_feedback_says_that_it_remembers(honest):
    experiment = built("honest", "method.error_feedback=true")
    assert experiment.method.stages.wire.remembers_clients
    assert not replace(experiment.method.stages.wire, feedback=None).remembers_clients


def test_the_page_defines_what_it_says(capsys):
    """The code of docs/own-methods.md, as it stands there."""
    page = (EXAMPLE.parents[1] / "docs" / "own-methods.md").read_text()
    scheme, makes = re.findall(r"```python\n(from .*?)```", page, flags=re.DOTALL)
    names = {"__name__": __name__}
    exec(scheme, names)
    exec(makes, names)
    assert compress.check(compress.get("three-levels")).passed
    assert repr(built("masked-levels", *PRIVATE).method.stages) == "Project > Encode > Clip > GaussianNoise"
    findings = {one.subject for one in compress.check(compress.get("three-levels")).findings}
    assert findings == set(re.findall(r"^\| (\w+) \| [^-]", page, flags=re.MULTILINE)) - {"finding"}


def test_the_example_is_short():
    assert len(EXAMPLE.read_text().splitlines()) <= 25
