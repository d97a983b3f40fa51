r"""Small students of every kind, each with the shape of one row."""

import torch
from torch import nn

import limbeck as lb
from limbeck.condensation import models
from limbeck.condensation.predict_function import Means, OutputFamily
from tests.models.nets import batch_of


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def net(seed=1, sizes=(4, 6, 3), **options):
    return lb.MLP(*sizes, generator=seeded(seed), **options)


def scaled():
    shift, scale = torch.tensor([0.0, 3e4, 2.0, 7.0]), torch.tensor([1.0, 1e-4, 0.0, 3.0])
    ends = torch.tensor([1.0, -2.0, 50.0]), torch.tensor([3.0, 0.5, 10.0])
    return lb.Preprocessed(net(output_form="values"), shift, scale, *ends)


def trees(estimator, outputs=1):
    x = torch.randn(80, 4, generator=seeded()).numpy()
    x[::7, 1] = float("nan")
    y = x[:, [0, 2]] * 2 + 1
    return lb.Trees.from_sklearn(estimator.fit(x, y[:, 0] if outputs == 1 else y))


def forest():
    from sklearn.ensemble import RandomForestRegressor

    return trees(RandomForestRegressor(7, max_depth=4, random_state=0), 2)


def classes_tree():
    from sklearn.tree import DecisionTreeClassifier

    x = torch.randn(80, 4, generator=seeded()).numpy()
    fitted = DecisionTreeClassifier(max_depth=3, random_state=0).fit(x, x[:, 0] + x[:, 1] > 0.3)
    return lb.Trees.from_sklearn(fitted)


def bag(predict, dim, **options):
    posterior = torch.randn(50, dim, generator=seeded()).abs()
    made = lb.SampleBag(predict, posterior, 3, **options)
    return Means(made, OutputFamily.of(made(torch.zeros(2, 4))))


def named_bag():
    draws = {
        "beta": torch.randn(1, 50, 4, generator=seeded()),
        "alpha": torch.rand(1, 50, generator=seeded(1)),
    }
    return Means(
        lb.SampleBag(models.logistic(), draws, 3, weighted=True), OutputFamily("Bernoulli")
    )


def own_function(draw, x):
    return lb.Bernoulli(logits=torch.tanh(x @ draw))


def mixture(covariance, dim=2):
    made = lb.GaussianMixture(3, dim, covariance, generator=seeded())
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=seeded(2)))
    return made


def layers():
    torch.manual_seed(0)
    made = nn.Sequential(
        nn.Flatten(), nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(), nn.Linear(8, 3),
        nn.LogSoftmax(-1),
    )  # fmt: skip
    made(torch.randn(30, 2, 2))  # so that running means are not zero
    return made


def nade(**options):
    return lb.NADE(5, 4, generator=seeded(), **options)


NUMPY = {
    "MLP": (net, (4,)),
    "MLP of all kinds": (
        lambda: net(
            sizes=(4, 5, 5, 5, 5, 5, 2), output="log_softmax",
            hidden=["tanh", "logistic", "probit", "softmax", "linear"],
        ), (4,),
    ),
    "MLP without biases": (lambda: net(bias=False, output="softmax"), (4,)),
    "one output": (lambda: net(sizes=(4, 3, 1), output="probit"), (4,)),
    "scaled": (scaled, (4,)),
    "ensemble": (lambda: lb.Ensemble([net(1), net(2, output="softmax")], [1.0, 2.0]), (4,)),
    "ensemble of one output": (
        lambda: lb.Ensemble([net(1, (4, 1)), net(2, (4, 1), output="logistic")]), (4,),
    ),
    "batched ensemble": (lambda: lb.Ensemble(batch_of([net(1), net(2)])), (4,)),
    "forest": (forest, (4,)),
    "tree of classes": (classes_tree, (4,)),
    "layers": (layers, (2, 2)),
    "bag: logistic": (lambda: bag(models.logistic(), 5), (4,)),
    "bag: logistic without bias": (lambda: bag(models.logistic(), 4), (4,)),
    "bag: named, weighted": (named_bag, (4,)),
    "bag: probit": (lambda: bag(models.probit(), 5), (4,)),
    "bag: poisson": (lambda: bag(models.poisson(), 5), (4,)),
    "bag: linear": (lambda: bag(models.linear(), 6, support={5: "positive"}), (4,)),
    "bag: softmax": (lambda: bag(models.softmax(classes=3), 15), (4,)),
    "bag: network": (lambda: bag(models.mlp(4, 3, 2), 23), (4,)),
    "bag: network of one output": (lambda: bag(models.mlp(4, 3, 1), 19), (4,)),
    "bag: network of numbers": (lambda: bag(models.mlp(4, 3, 1, scale=0.5), 19), (4,)),
    "mixture": (lambda: mixture("full"), (2,)),
    "diagonal mixture": (lambda: mixture("diagonal"), (2,)),
    "spherical mixture": (lambda: mixture("spherical"), (2,)),
    "NADE": (lambda: nade(order="random", centre=[0.1, 0.5, 0.2, 0.9, 0.4]), (5,)),
    "NADE of spins": (lambda: nade(support=lb.Spins(5)), (5,)),
}  # fmt: skip
r"""Students that plain NumPy can do."""

OTHERS = {
    "bag of the user's own": (lambda: bag(own_function, 4), (4,)),
    "NADE of states": (lambda: nade(support=lb.States(3, 5)), (5,)),
    "deep NADE": (lambda: lb.DeepNADE(5, 4, generator=seeded()), (5,)),
    "deep NADE of states": (
        lambda: lb.DeepNADE(5, 4, support=lb.States(3, 5), generator=seeded()), (5,),
    ),
    "MADE": (lambda: lb.MADE(5, 4, generator=seeded()), (5,)),
}  # fmt: skip
r"""Students that need torch or ONNX."""

EVERY = NUMPY | OTHERS


def rows(module, shape, n, seed=3):
    support = getattr(module, "support", None)
    if support is not None:
        return support.start(n, seeded(seed))
    return torch.randn(n, *shape, generator=seeded(seed))
