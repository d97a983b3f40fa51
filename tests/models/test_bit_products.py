import pytest
import torch

from limbeck.models.rbm import BitProducts, halves


def test_halves_add_up_and_each_fits_into_eleven_bits():
    W = torch.randn(1000, generator=torch.Generator().manual_seed(0)) * 3
    high, low = halves(W)
    assert torch.equal(high + low, W)
    for part, bits in ((high, 11), (low, 13)):
        mantissa, _ = torch.frexp(part)
        assert torch.equal(mantissa * 2**bits, (mantissa * 2**bits).round())
    assert (low.abs() <= W.abs() * 2**-10).all()


def products(device):
    generator = torch.Generator().manual_seed(1)
    W = torch.randn(300, 200, generator=generator)
    x = torch.randint(2, (64, 300), generator=generator).float()
    h = torch.randint(2, (64, 200), generator=generator).float()
    a, b = torch.randn(300, generator=generator), torch.randn(200, generator=generator)
    by = BitProducts(W.to(device))
    forth = by(b.to(device), x.to(device), torch.empty(64, 200, device=device))
    back = by(a.to(device), h.to(device), torch.empty(64, 300, device=device), back=True)
    exact = x.double() @ W.double() + b.double(), h.double() @ W.double().T + a.double()
    return (forth.cpu().double(), back.cpu().double()), exact


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_products_are_exact_to_single_precision(device):
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    for found, exact in zip(*products(device), strict=True):
        assert (found - exact).abs().max() < 3e-5  # sums of 200 or 300 numbers near 1
