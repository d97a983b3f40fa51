r"""Names that try to be markup, code or commands, and a pickle that leaves a mark when read."""

import os
import pickle
from functools import cache

import numpy as np

import limbeck as lb

MARK = "pwned.txt"  # a file that must not be there
QUOTES = f'a"); __import__("os").system("touch {MARK}"); ("'  # closes a string in double quotes
NAMES = [
    "<script>alert(1)</script>",
    QUOTES,
    f"a'); __import__('os').system('touch {MARK}'); ('",
    f'"""; import os; os.system("touch {MARK}") #',
    f"a\nimport os; os.system('touch {MARK}')",
    "[bold]x[/bold] [/] [link=https://e.example]y[/link] :smile:",
    "\x1b]0;title\x07\x1b[31mred\x00\u202edesrever\x9b2J",
    "a|b `c` ```d``` *e* _f_ ~~g~~ $h$ &lt; \\",
    "![i](javascript:alert(1)) [j](https://e.example) https://e.example www.e.example",
    "{{ 7 * 7 }}{% raw %}{: onclick=alert(1) }</style></svg><!-- -->",
    "x" * 5000,
]


def teacher_class(name="T<img src=x onerror=alert(1)>[red]\x1b[2J"):
    def scores(X):
        z = np.outer(np.asarray(X.iloc[:, 1], float), np.arange(len(NAMES)))
        odds = np.exp(z - z.max(1, keepdims=True))
        return odds / odds.sum(1, keepdims=True)

    def predict(self, X):
        return self.classes_[scores(X).argmax(1)]

    members = {"classes_": np.array(NAMES, dtype=object), "predict": predict}
    return type(name, (), members | {"predict_proba": lambda self, X: scores(X)})


@cache
def compressed():
    r"""A student whose columns, categories, classes and teacher all have such names; its report."""
    import pandas

    rng = np.random.default_rng(0)
    columns = [rng.normal(size=200) if k % 2 else rng.choice(NAMES, 200) for k in range(len(NAMES))]
    frame = pandas.DataFrame(dict(zip(NAMES, columns, strict=True)))
    teacher, options = teacher_class()(), {"inputs": "data", "steps": 20, "progress": False}
    small = lb.compress(teacher, frame[:120], student=(4,), device="cpu", **options)
    labels = teacher.predict(frame[120:])
    report = small.report(frame[120:], labels, groups=[NAMES[0]], time=False)
    return small, report, frame[120:]


class Evil:
    r"""What its pickle does: it makes a folder where MARK is."""

    def __reduce__(self):
        return os.mkdir, (MARK,)


def evil_pickle():
    return pickle.dumps(Evil())
