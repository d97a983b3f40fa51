import math

import torch

from tests.models.kernels import reference

GENERATOR = torch.Generator().manual_seed(0)


def problem(n, inputs, hidden, dtype=torch.float64):
    def normal(*shape):
        return torch.randn(*shape, generator=GENERATOR, dtype=dtype)

    x = (torch.rand(n, inputs, generator=GENERATOR, dtype=dtype) < 0.4).to(dtype)
    return x, normal(inputs, hidden), normal(hidden), normal(inputs, hidden), normal(inputs)


def by_loops(x, w, c, u, b):
    r"""The equations of the text, number by number."""
    inputs, hidden = len(w), len(c)
    a, total = [float(each) for each in c], 0.0
    for i in range(inputs):
        h = [1 / (1 + math.exp(-each)) for each in a]
        z = float(b[i]) + sum(float(u[i, j]) * h[j] for j in range(hidden))
        guess = 1 / (1 + math.exp(-z))
        total += float(x[i]) * math.log(guess) + (1 - float(x[i])) * math.log(1 - guess)
        a = [a[j] + float(w[i, j]) * float(x[i]) for j in range(hidden)]
    return total


def test_log_prob_is_what_the_equations_say():
    x, *parameters = problem(4, 6, 3)
    expected = [by_loops(row, *parameters) for row in x]
    torch.testing.assert_close(reference.log_prob(x, *parameters).tolist(), expected)


def test_log_prob_is_finite_where_probabilities_underflow():
    x, w, c, u, b = problem(2, 3, 2, torch.float32)
    found = reference.log_prob(torch.zeros_like(x), w, c, u, b + 1e4)
    assert found.isfinite().all()
    assert (found < -2e4).all()


def test_gradients_are_finite_differences():
    x, *parameters = problem(3, 5, 2)
    x = x + 0.1 * torch.randn(x.shape, generator=GENERATOR, dtype=x.dtype)
    g = torch.randn(3, generator=GENERATOR, dtype=x.dtype)
    inputs = [x, *parameters]
    for place, found in enumerate(reference.gradients(g, *inputs)):
        differences = torch.empty_like(inputs[place])
        for k in range(differences.numel()):
            shifted = []
            for step in (1e-6, -1e-6):
                moved = [each.clone() for each in inputs]
                moved[place].view(-1)[k] += step
                shifted.append((g * reference.log_prob(*moved)).sum())
            differences.view(-1)[k] = (shifted[0] - shifted[1]) / 2e-6
        torch.testing.assert_close(found, differences, atol=1e-7, rtol=1e-6)


def test_a_period_sums_over_whole_variables_only():
    x, w, c, u, _ = problem(3, 6, 4)
    found = reference.logits(x, w, c, u, 3)
    first = c.sigmoid() @ u[:3].T
    second = (c + x[:, :3] @ w[:3]).sigmoid() @ u[3:].T
    torch.testing.assert_close(found, torch.cat([first.expand(3, 3), second], 1))


def test_samples_follow_their_own_probabilities():
    _, *parameters = problem(1, 6, 3)
    uniforms = torch.rand(50, 6, generator=GENERATOR, dtype=torch.float64)
    w, c, u, b = parameters
    for m in (None, torch.rand(6, generator=GENERATOR, dtype=torch.float64)):
        x, probabilities = reference.sample(uniforms, *parameters, m)
        assert torch.equal(x, (uniforms < probabilities).double())
        expected = (reference.logits(x if m is None else x - m, w, c, u) + b).sigmoid()
        torch.testing.assert_close(probabilities, expected)
