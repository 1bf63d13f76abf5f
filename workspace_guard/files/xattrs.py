"""Extended attributes, ACLs among them, by descriptor or by name without following.

Room: files. Knows which platforms have them and which errors only mean "not here".

Source: xattr(7), acl(5) (a POSIX ACL is the attribute system.posix_acl_access).
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys

_ABSENT = frozenset({errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENODATA, errno.EPERM})
_OVERLAY = (b"user.overlay.", b"trusted.overlay.")

Attributes = tuple[tuple[bytes, bytes], ...]


if sys.platform == "linux":

    def read_xattrs(where: int | bytes) -> Attributes:
        """All extended attributes of a descriptor, or of a path that is not followed.

        Returns:
            (name, value) in the order of names; empty where the file system has none.

        Raises:
            OSError: they are there and could not be read.
        """
        follow = isinstance(where, int)
        try:
            names = os.listxattr(where, follow_symlinks=follow)
        except OSError as error:
            if error.errno in _ABSENT:
                return ()
            raise
        pairs: list[tuple[bytes, bytes]] = []
        for name in sorted(names):
            try:
                value = os.getxattr(where, name, follow_symlinks=follow)
            except OSError as error:
                if error.errno not in _ABSENT:
                    raise
                continue  # gone meanwhile, or shown to a privileged reader only
            pairs.append((os.fsencode(name), value))
        return tuple(pairs)

    def write_xattrs(where: int | bytes, wanted: Attributes) -> None:
        """Make the attributes of a file those of `wanted`, no more and no fewer.

        Raises:
            OSError: one could not be set or removed; the others were tried all the
                same. Where some were only forbidden, the error is of another one.
        """
        follow = isinstance(where, int)
        there = dict(read_xattrs(where))
        errors: list[OSError] = []
        for name, value in wanted:
            if there.pop(name, None) == value:
                continue
            try:
                os.setxattr(where, name, value, follow_symlinks=follow)
            except OSError as error:
                errors.append(error)
        for name in there:
            try:
                os.removexattr(where, name, follow_symlinks=follow)
            except OSError as error:
                errors.append(error)
        if errors:
            raise min(errors, key=_is_forbidden)

else:

    def read_xattrs(where: int | bytes) -> Attributes:
        """Nothing: the standard library reads them on Linux only."""
        del where
        return ()

    def write_xattrs(where: int | bytes, wanted: Attributes) -> None:
        """Nothing: the standard library writes them on Linux only."""
        del where, wanted


def _is_forbidden(error: OSError) -> bool:
    return isinstance(error, PermissionError)


def without_overlay(attributes: Attributes) -> Attributes:
    """Leave out what an overlay keeps for itself (case E30)."""
    return tuple(pair for pair in attributes if not pair[0].startswith(_OVERLAY))


def carry_over(source_fd: int, to_fd: int) -> None:
    """Give one open file the attributes of another, as far as we may.

    An attribute that only a privileged user may set (a security label, a capability)
    is left out: the kernel refuses it with EPERM.
    """
    with contextlib.suppress(PermissionError):
        write_xattrs(to_fd, without_overlay(read_xattrs(source_fd)))
