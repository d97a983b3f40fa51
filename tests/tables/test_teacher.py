r"""Tables at work: a teacher that eats frames, and a student of their tensors."""

import numpy as np
import pytest
import torch
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import RandomForestClassifier
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder
from torch import nn

import limbeck as lb
from limbeck.tables.table import Table

pd = pytest.importorskip("pandas")


def people(n=300, seed=0):
    g = np.random.default_rng(seed)
    age = g.integers(18, 80, n)
    town = g.choice(["Köln", "Ulm", "Bonn"], n)
    pay = g.normal(30, 8, n) + 0.2 * age
    y = (pay > 42) ^ (town == "Ulm")
    df = pd.DataFrame(
        {
            "age": age,
            "pay": np.where(g.random(n) < 0.15, np.nan, pay),
            "town": pd.Series(town).mask(g.random(n) < 0.1),
            "grade": pd.Categorical(g.choice(["a", "b"], n)),
            "member": g.random(n) < 0.5,
            "country": "DE",
        }
    )
    return df, y


def forest(df, y):
    numbers, categories = ["age", "pay", "member"], ["town", "grade", "country"]
    columns = ColumnTransformer(
        [
            ("numbers", SimpleImputer(), numbers),
            ("categories", OneHotEncoder(handle_unknown="ignore"), categories),
        ]
    )
    return make_pipeline(columns, RandomForestClassifier(15, random_state=0)).fit(df, y)


@pytest.fixture(scope="module")
def teacher():
    return forest(*people())


def test_a_pipeline_answers_to_rebuilt_and_to_generated_frames(teacher):
    df, _ = people()
    table = Table(df)
    back = table.to_frame(table.encode(df))
    assert np.allclose(teacher.predict_proba(back), teacher.predict_proba(df))
    made = table.to_frame(table.munge(df, seed=0)(500).x)
    assert (made.dtypes == df.dtypes).all()
    assert teacher.predict_proba(made).shape == (500, 2)
    unseen = df.assign(town="Paris", country="FR")
    assert teacher.predict_proba(table.to_frame(table.encode(unseen))).shape == (300, 2)


def test_a_small_student_learns_from_it(teacher):
    df, _ = people()
    table = Table(df)
    encoder = table.encoder()
    net = lb.MLP(encoder.width, 24, 2, generator=torch.Generator().manual_seed(0))
    student = nn.Sequential(encoder, net)
    opaque = lb.Opaque(lambda x: teacher.predict_proba(table.to_frame(x)), "probabilities")
    result = lb.distill(
        opaque, student, table.munge(df, seed=0), lb.losses.cross_entropy(), steps=150,
        batch_size=100, student_output="logits", device="cpu", lr=1e-2, progress=False,
    )  # fmt: skip
    assert result.history["loss"][-1] < result.history["loss"][0]
    other, _ = people(seed=1)
    with torch.no_grad():
        found = student(table.encode(other)).argmax(1).numpy()
    agreement = (found == teacher.predict(other)).mean()
    assert agreement > 0.8
    assert agreement > max(teacher.predict(other).mean(), 1 - teacher.predict(other).mean()) + 0.1


def test_derivative_losses_cover_numbers_only():
    df, _ = people(60)
    table = Table(df)

    def net(seed):
        encoder = table.encoder()
        mlp = lb.MLP(encoder.width, 8, 2, generator=torch.Generator().manual_seed(seed))
        return nn.Sequential(encoder, mlp)

    loss = lb.losses.cross_entropy() + 1e-2 * lb.losses.derivative_error(domain="log")
    result = lb.distill(
        net(0), net(1), table.encode(df), loss, steps=40, batch_size=20, teacher_output="logits",
        student_output="logits", device="cpu", progress=False,
    )  # fmt: skip
    assert result.history["loss"][-1] < result.history["loss"][0]
    asked = lb.evaluate(net(0), table.encode(df), "derivatives", output="logits", domain="log")
    assert asked.derivatives.shape == (60, 2, 2)  # of two outputs, by age and pay
