r"""The best 784-50-30-10 student of the source text's teacher, with all of limbeck's options.

    python experiments/best_student.py --data DIR --out results --device cuda --seconds-budget 540

First a search: one setting after the other is varied, with all images and with a tenth of them, on
students that are not trained on the last 10,000 training images. The settings are compared by log
probability on these images. (The teacher was trained on them, so it is more confident there than on
test images; students never see them. For the tenth, they are images outside of it, with labels,
and are used only to choose settings.) Then students with the best settings are trained on all
images, or on the tenth, with several seeds, and measured once on the test set.

With `--pool N` the teacher labels N inputs once, before training, and students are trained in
passes over these: a step then costs no more than the students' own.

Every finished run is stored in best-student.json. A call makes as many runs as its budget of
seconds allows; call it again until it reports that nothing is left.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
from pathlib import Path

import torch

from limbeck.environment import environment
from limbeck.inputs import Dataset, Mix
from limbeck.models.mlp import BatchedMLP
from limbeck.teachers.base import as_teacher
from limbeck.teachers.stored import precompute
from limbeck.training.config import choose_device
from limbeck.training.distill import steps as steps_of

sys.path.append(str(Path(__file__).resolve().parents[1]))  # the root, for `reproduction`
from reproduction import data, keeping
from reproduction.ahead import Ahead
from reproduction.chapter2 import Settings
from reproduction.chapter2_measure import Examples, examples, measured
from reproduction.chapter2_parts import BLOCK, Parts
from reproduction.copies import Change, Copies
from reproduction.crowd import Average, crowd_error
from reproduction.record import write

FILE = "best-student.json"
HELD_OUT = 1 / 6  # of the train images, the last ones
SHARES = ("all", "tenth")
LOOK = 10  # steps between updates of the average of weights
MEMORY = 0.05  # of all steps, that of the average
ASKED = 10_000  # inputs per query of the teacher before training

BASE = {
    "strength": 1.0,  # of the change from an image to its copy
    "bend": 0.0,
    "original": 0.1,  # share of images that stay as they are
    "nade": 0.0,  # share of NADE's samples
    "temperature": 1.0,
    "derivatives": 0.0,  # weight of the derivative square error
    "labels": 0.0,  # weight of the true labels
    "batch": 500,
    "lr": 6e-3,
}
STAGES = (
    ("strength", (0.5, 0.75, 1.0, 1.5)),
    ("bend", (0.0, 1.0, 2.0)),
    ("lr", (3e-3, 6e-3, 1.2e-2)),
    ("original", (0.0, 0.1, 0.3)),
    ("temperature", (1.0, 2.0)),
    ("nade", (0.0, 0.2)),
    ("derivatives", (0.0, 1e-4, 1e-3)),
    ("labels", (0.0, 0.3, 1.0, 3.0)),  # with labels, a student is judged apart
)


class Bench:
    r"""Data, teacher and results so far; trains what is requested and missing."""

    def __init__(self, ask, digits, settings):
        self.ask, self.out = ask, Path(ask.out)
        self.place = choose_device(ask.device)
        self.parts = Parts(digits, self.out, settings, self.place, not ask.quiet)
        self.seen = len(self.parts.x) - round(HELD_OUT * len(self.parts.x))
        cut = digits._replace(train=digits.train[: self.seen], labels=digits.labels[: self.seen])
        self.split = Parts(cut, self.out / "split", settings, self.place, not ask.quiet)
        self.split.rows = {"all": self.seen, "tenth": min(self.seen, self.parts.rows["tenth"])}
        self.teacher = (
            keeping.read(Path(ask.teacher), self.place)[0] if ask.teacher else self.parts.teacher[0]
        )
        self.found = environment(self.place) | {"teacher": self._about_teacher(), "trained": []}
        if (self.out / FILE).exists():
            before = json.loads((self.out / FILE).read_text(encoding="utf-8"))
            self.found["trained"] = before["trained"]
        self.pool = torch.empty(0)
        self.began, self.left = time.perf_counter(), 0

    def _about_teacher(self):
        at = examples(self.teacher, self.parts.test, self.parts.test_y)
        return {"digest": keeping.digest(self.teacher), **measured(at)}

    def known(self, **key):
        r"""The trainings that agree with what is given."""
        return [e for e in self.found["trained"] if all(e[k] == v for k, v in key.items())]

    def trained(self, phase, share, config, steps, members, seed):
        r"""A training, from the file or done now; None if the time does not suffice."""
        key = {"phase": phase, "share": share, "config": config, "steps": steps}
        key |= {"members": members, "seed": seed}
        if same := self.known(**key):
            return same[0]
        passed = time.perf_counter() - self.began
        like = self.known(phase=phase) or self.found["trained"]
        rate = max((e["seconds"] / e["steps"] for e in like[-3:]), default=0.0)
        if self.left or passed + steps * rate > self.ask.seconds_budget:
            self.left += 1
            return None
        parts = self.split if phase == "search" else self.parts
        nets, seconds = self._train(parts, share, config, steps, members, seed)
        entry = key | {"seconds": round(seconds, 1), "teacher": self.found["teacher"]["digest"]}
        for name, net in nets.items():
            if phase == "search":
                x, y = self.parts.x[self.seen :], self.parts.y[self.seen :]
                entry[name] = self._measure(net, x, y)
            else:
                entry[name] = self._measure(net, self.parts.test, self.parts.test_y)
                file = f"{share}-{'labels-' if config['labels'] else ''}{name}-{seed}.safetensors"
                keeping.write(self.out / "students" / file, net, key)
        self.found["trained"].append(entry)
        write(self.out / FILE, self.found)
        print(_line(entry), flush=True)
        return entry

    def _train(self, parts, share, config, steps, members, seed):
        ask, rows = parts.settings, parts.rows[share]
        generator = torch.Generator().manual_seed(seed)
        sizes = (parts.x.shape[1], *ask.hidden, parts.classes)
        net = BatchedMLP(members, *sizes, generator=generator).to(self.place)
        mean = Average(net.parameters(), MEMORY * steps / LOOK)
        began = time.perf_counter()
        loss = crowd_error(config["temperature"], config["derivatives"], config["labels"])
        teacher, source = self.teacher, self._inputs(parts, share, rows, config)
        if config["pool"] and not config["derivatives"]:
            teacher, source = self._pooled(source, config["pool"], loss, seed)
        for step in steps_of(
            teacher, net, source, loss, steps=steps, every=steps, batch_size=config["batch"],
            lr=config["lr"], seed=seed, device=self.place, progress=not self.ask.quiet,
        ):  # fmt: skip
            if step.number % LOOK == 0:
                mean.update()
        averaged = BatchedMLP(members, *sizes).to(self.place)
        mean.into(averaged.parameters())
        return {"last": net, "averaged": averaged}, time.perf_counter() - began

    def _inputs(self, parts, share, rows, config):
        change = Change(original=0.0).times(config["strength"])
        change = Change(**vars(change) | {k: config[k] for k in ("bend", "original")})
        labels = parts.y[:rows] if config["labels"] else None
        copies = Copies(parts.x[:rows], change, labels, parts.shape)
        if not config["nade"]:
            return copies
        nade = parts.nade(share, 0)[0]
        block = BLOCK.get(self.place.type, BLOCK["cpu"])
        samples = Ahead(nade.sample_probabilities, block)
        return Mix([copies, samples], weights=[1 - config["nade"], config["nade"]])

    @torch.no_grad()
    def _pooled(self, source, count, loss, seed):
        r"""A number of new inputs, and the teacher's predictions there."""
        source.to(self.place, torch.float32, seed)
        if len(self.pool) != count:  # one place for all trainings: captured graphs hold on to it
            self.pool = torch.empty(count, self.parts.x.shape[1], device=self.place)
        x = self.pool
        y = []
        for rows in x.split(ASKED):
            batch = source(len(rows))
            rows.copy_(batch.x)
            y.append(batch.y)
        labels = None if y[0] is None else torch.cat(y)
        return precompute(as_teacher(self.teacher), x, [loss], block=ASKED), Dataset(x, labels)

    @torch.no_grad()
    def _measure(self, crowd, x, y):
        r"""Accuracy in % and log probability of each member."""
        found = {name: [] for name in Examples._fields}
        for index in range(crowd.members):
            for name, (mean, _) in measured(examples(crowd.member(index), x, y)).items():
                found[name].append(mean)
        return found


def score(entry):
    r"""The better of the last and the averaged weights, by log probability over members."""
    means = {name: statistics.mean(entry[name]["log_prob"]) for name in ("last", "averaged")}
    name = max(means, key=means.__getitem__)
    return means[name], name


def best(entries, with_labels):
    r"""The best of some trainings of the search, with or without labels, if there is any."""
    found = [e for e in entries if bool(e["config"]["labels"]) == with_labels]
    return max(found, key=score, default=None)


def search(bench, share):
    r"""Vary one setting after the other, each time around the best so far: what was trained."""
    ask, done = bench.ask, []
    for name, values in STAGES:
        so_far = best(done, False)
        around = so_far["config"] if so_far else BASE | {"pool": ask.pool}
        for value in values:
            config = dict(around) | {name: value}
            if config["labels"]:
                config["nade"] = 0.0  # its samples have none
            entry = bench.trained("search", share, config, ask.search_steps, ask.crowd, 0)
            if entry is None:
                return done
            done.append(entry)
    return done


def final(bench, share, with_labels):
    r"""The best settings, with several seeds, on the test set."""
    ask = bench.ask
    searched = bench.known(phase="search", share=share, steps=ask.search_steps)
    chosen = best(searched, with_labels)
    if chosen is None:
        return None
    config = chosen["config"] | json.loads(ask.set)
    name, done = score(chosen)[1], []
    for group in range(math.ceil(ask.seeds / ask.together)):
        entry = bench.trained("final", share, config, ask.steps, ask.together, group)
        if entry is None:
            return None
        done.append(entry)
    figures = {
        measure: [value for entry in done for value in entry[name][measure]][: ask.seeds]
        for measure in Examples._fields
    }
    return {
        "share": share, "labels": with_labels, "weights": name, "config": config,
        "steps": ask.steps, "validation": score(chosen)[0], "test": figures,
        "mean": {k: statistics.mean(v) for k, v in figures.items()},
        "std_error": {k: _error(v) for k, v in figures.items()},
    }  # fmt: skip


def _error(values):
    return statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None


def _line(entry):
    means = [
        f"{name} {statistics.mean(entry[name]['accuracy']):.3f} "
        f"{statistics.mean(entry[name]['log_prob']):.4f}"
        for name in ("last", "averaged")
    ]
    unlike = {k: v for k, v in entry["config"].items() if v != BASE.get(k)}
    return f"{entry['phase']:>6} {entry['share']:>5} {entry['seconds']:>6.1f} s  {means}  {unlike}"


def main(arguments=None, settings=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", default=None, help="folder with MNIST")
    parser.add_argument("--out", default="best-student", help="folder for results and students")
    parser.add_argument("--teacher", default=None, help="a saved one; else out/teacher.safetensors")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--phase", default="both", choices=("search", "final", "both"))
    parser.add_argument("--share", default="both", choices=(*SHARES, "both"))
    parser.add_argument("--search-steps", type=int, default=25_000)
    parser.add_argument("--crowd", type=int, default=3, help="students at once in the search")
    parser.add_argument("--steps", type=int, default=150_000, help="of the final students")
    parser.add_argument("--seeds", type=int, default=5, help="final students")
    parser.add_argument("--together", type=int, default=1, help="final students on the same inputs")
    parser.add_argument("--with-labels", action="store_true", help="final students with labels too")
    parser.add_argument("--pool", type=int, default=0, help="inputs labelled ahead; 0 for none")
    parser.add_argument("--set", default="{}", help="JSON of settings to change in the best ones")
    parser.add_argument("--seconds-budget", type=float, default=math.inf)
    parser.add_argument("--quiet", action="store_true", help="no progress bars")
    ask = parser.parse_args(arguments)
    bench = Bench(ask, data.mnist(ask.data), settings or Settings())
    shares = SHARES if ask.share == "both" else (ask.share,)
    print("teacher", bench.found["teacher"], flush=True)
    if ask.phase != "final":
        for share in shares:
            search(bench, share)
    if ask.phase != "search" and not bench.left:
        tracks = (False, True) if ask.with_labels else (False,)
        results = [final(bench, share, labels) for share in shares for labels in tracks]
        bench.found["final"] = [each for each in results if each is not None]
        write(bench.out / FILE, bench.found)
        for each in bench.found["final"]:
            print(json.dumps(each))
    print("time is up: call again to go on" if bench.left else "nothing is left to do", flush=True)
    return bench.found


if __name__ == "__main__":
    main()
