"""Selection along one axis, in a form that exported graphs keep for all sizes."""

from torch import Tensor


def take_along(x: Tensor, index: Tensor, dim: int) -> Tensor:
    """Values of x [..., N, ...] at an index [..., n, ...] along the axis `dim`.

    The index has as many axes as x; axes of size 1 broadcast to the size of x. The result is that
    of `torch.take_along_dim`, which an exported graph would fix to the sizes of its example.

    Args:
        x: any dtype.
        index: int64, smaller than N.
        dim: the axis.
    """
    sizes = list(x.shape)
    sizes[dim] = index.shape[dim]
    return x.gather(dim, index.expand(sizes))
