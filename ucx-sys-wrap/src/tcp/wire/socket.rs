//! What passes through a socket, in one system call each way.

use std::io::{IoSlice, IoSliceMut};

use rustix::fd::BorrowedFd;
use rustix::io::readv;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags, recv, send, sendmsg};

/// A closed connection is an error, never a signal.
const FLAGS: SendFlags = SendFlags::NOSIGNAL;

/// Reads what there is into all places.
#[inline]
pub(super) fn read(socket: BorrowedFd<'_>, places: &mut [IoSliceMut<'_>]) -> rustix::io::Result<usize> {
    match places {
        [place] => recv(socket, &mut **place, RecvFlags::empty()).map(|(got, _)| got),
        places => readv(socket, places),
    }
}

/// Writes as much of all slices as the kernel takes.
#[inline]
pub(super) fn write(socket: BorrowedFd<'_>, slices: &[IoSlice<'_>]) -> rustix::io::Result<usize> {
    match slices {
        [slice] => send(socket, slice, FLAGS),
        slices => sendmsg(socket, slices, &mut SendAncillaryBuffer::default(), FLAGS),
    }
}
