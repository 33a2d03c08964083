"""Function transforms of JAX and PyTorch: equal to plain derivatives, or refused with advice."""

import keras
import numpy as np
import pytest
import tiers
from batches import batch
from oracles import CASES

from keras_dml import losses

BACKEND = keras.backend.backend()
pytestmark = [
    pytest.mark.any_backend,
    pytest.mark.skipif(BACKEND == "tensorflow", reason="transforms of JAX and PyTorch"),
]

REFUSED = (losses.SecondDerivativeError, losses.ForwardModeError)
FIRST = list({case.name: case for case in reversed(CASES)}.values())
# Close pairs, and ranks in a loop. The others have only operations of the backend.
QUICK = [case for case in FIRST if case.name in ("contrastive", "smooth_ap")]

if BACKEND == "jax":
    import jax
    import jax.numpy as jnp

    as_tensor, grad, jacrev, vdot = jnp.asarray, jax.grad, jax.jacrev, jnp.vdot

    def scanned(f):
        return lambda z: jax.lax.scan(lambda sum, x: (sum + f(x), None), jnp.zeros(()), z[None])[0]

    REVERSE = {
        "grad(jit)": lambda f: jax.grad(jax.jit(f)),
        "grad(scan)": lambda f: jax.grad(scanned(f)),
        "jit(grad)": lambda f: jax.jit(jax.grad(f)),
        "grad(checkpoint)": lambda f: jax.grad(jax.checkpoint(f)),
        "grad(remat)": lambda f: jax.grad(keras.remat(f)),
        "grad(map)": lambda f: jax.grad(lambda z: jax.lax.map(f, z[None])[0]),
        "grad(cond)": lambda f: jax.grad(lambda z: jax.lax.cond(z[0, 0] < 9, f, jnp.sum, z)),
        "vmap(grad)": lambda f: lambda z: jax.vmap(jax.grad(f))(jnp.stack([z, 2 * z]))[0],
        "grad(vmap)": lambda f: jax.grad(lambda z: jax.vmap(f)(jnp.stack([z, z + 1]))[0]),
    }
    FORWARD = {
        "jvp": lambda f, z, d: jax.jvp(f, (z,), (d,))[1],
        "jacfwd(grad)": lambda f, z, d: jnp.tensordot(jax.jacfwd(jax.grad(f))(z), d, 2),
        "hessian": lambda f, z, d: jnp.tensordot(jax.hessian(f)(z), d, 2),
    }
elif BACKEND == "torch":
    import torch
    from torch import func

    as_tensor, grad, jacrev = torch.tensor, func.grad, func.jacrev

    def vdot(a, b):
        return (a * b).sum()

    REVERSE = {
        "vjp": lambda f: lambda z: func.vjp(f, z)[1](torch.ones((), dtype=z.dtype))[0],
        "vmap(grad)": lambda f: lambda z: func.vmap(func.grad(f))(torch.stack([z, 2 * z]))[0],
        "grad(vmap)": lambda f: func.grad(lambda z: func.vmap(f)(torch.stack([z, z + 1]))[0]),
    }
    FORWARD = {
        "jvp": lambda f, z, d: func.jvp(f, (z,), (d,))[1],
        "jacfwd(grad)": lambda f, z, d: torch.tensordot(func.jacfwd(func.grad(f))(z), d, 2),
        "hessian": lambda f, z, d: torch.tensordot(func.hessian(f)(z), d, 2),
    }
else:
    REVERSE = FORWARD = {}


@pytest.fixture(autouse=True)
def _freed_programs(request):
    """Free the programs that JAX compiled, because the system limits a process to 65,530 maps.

    A cell compiles programs with up to 1,500 maps. Above the limit, the process gets signal 11.
    """
    yield
    if BACKEND == "jax" and request.node.get_closest_marker("thorough"):
        jax.clear_caches()


def table(forms):
    """Parametrize by the forms and the losses. Two losses are quick in the first two forms."""
    cells = [(form, case) for form in forms for case in FIRST]
    quick = [cell for cell in cells if cell[0] in list(forms)[:2] and cell[1] in QUICK]
    ids = [f"{form}-{case}" for form, case in cells]
    return tiers.parametrize(("form", "case"), cells, quick, ids=ids)


def problem(case):
    """Return a loss as a function of embeddings, the embeddings, and a direction."""
    ids, z = batch(seed=6)
    loss = losses.get(case.name, **case.arguments, dtype="float64")
    direction = np.random.default_rng(3).normal(size=z.shape)
    return lambda z: loss(ids, z), as_tensor(z / np.abs(z).max()), as_tensor(direction)


def array(x):
    return np.asarray(x.detach() if BACKEND == "torch" else x)


def second(gradient, z, direction):
    """Return the derivative of a gradient along a direction, or None if it is refused."""
    try:
        return array(grad(lambda z: vdot(gradient(z), direction))(z))
    except losses.SecondDerivativeError:
        return None


def plain(f, z):
    """Return the gradient without `torch.func`, whose `grad` is one of the transforms."""
    if BACKEND == "jax":
        return array(jax.grad(f)(z))
    z = z.clone().requires_grad_()
    return array(torch.autograd.grad(f(z), z)[0])


def close(found, expected):
    np.testing.assert_allclose(found, expected, atol=1e-8 * (1e-3 + np.abs(expected).max()))


@table(REVERSE)
def test_reverse_mode_of_a_transform_equals_the_plain_derivative(form, case):
    if BACKEND == "torch" and "vmap" in form and case.name == "pce":
        pytest.skip("PyTorch does not map the loop over eigenvalues")
    f, z, direction = problem(case)
    close(array(REVERSE[form](f)(z)), plain(f, z))
    expected = second(grad(f), z, direction)
    found = second(REVERSE[form](f), z, direction)
    assert (found is None) == (expected is None)
    if expected is not None:
        close(found, expected)


@table(FORWARD)
def test_forward_mode_equals_reverse_mode_or_gives_advice(form, case):
    f, z, direction = problem(case)
    try:
        found = array(FORWARD[form](f, z, direction))
    except REFUSED as error:
        assert "fused=False" in str(error) or "jacrev(grad(loss))" in str(error)
        return
    first = plain(f, z)
    close(found, vdot_of(first, direction) if form == "jvp" else second(grad(f), z, direction))


def vdot_of(gradient, direction):
    return (gradient * array(direction)).sum()


@pytest.mark.parametrize("name", ["smooth_ap", "recall_at_k"])
@tiers.parametrize("form", FORWARD, list(FORWARD)[:1])
def test_the_advice_of_fused_losses_works_in_forward_mode(form, name):
    ids, z = batch(seed=6)
    loss = losses.get(name, dtype="float64")
    z, direction = as_tensor(z), as_tensor(np.ones_like(z))
    with pytest.raises(losses.ForwardModeError, match="fused=False"):
        FORWARD[form](lambda z: loss(ids, z), z, direction)
    loss.fused = False
    assert np.isfinite(array(FORWARD[form](lambda z: loss(ids, z), z, direction))).all()


def test_the_advice_of_losses_of_distances_works():
    ids, z = batch(seed=6)
    loss = losses.ContrastiveLoss(dtype="float64")
    z, direction = as_tensor(z), as_tensor(np.ones_like(z))
    hessian = array(jacrev(grad(lambda z: loss(ids, z)))(z))
    expected = second(grad(lambda z: loss(ids, z)), z, direction)
    close(np.tensordot(hessian, array(direction), 2), expected)
