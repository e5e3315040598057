//! What is said between an executor and its Python child: a length, a kind, a payload; each request has one answer, and that for a gradient
//! may say before its answer which stretches of it are final. The same is written in
//! `python/ebb/worker.py`. Both sides are of one program, so there are no versions. Fork-servers (`warm.rs`) are spoken to in the same frames.

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    recvmsg, sendmsg,
};
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

/// Longest frame: the names of all parameters of a large model fit in it.
pub(crate) const FRAME_BYTES_MAX: usize = 64 << 20;
/// Descriptors that one frame brings at most: those of a request to fork.
pub(crate) const DESCRIPTORS_MAX: usize = 5;

/// Says one thing.
pub fn write(socket: &mut UnixStream, kind: u8, payload: &[u8]) -> io::Result<()> {
    write_with(socket, kind, payload, &[])
}

/// Says one thing, with descriptors that come with its beginning.
pub fn write_with(socket: &mut UnixStream, kind: u8, payload: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    let length = u32::try_from(payload.len() + 1).map_err(io::Error::other)?;
    let mut frame = Vec::with_capacity(payload.len() + 5);
    frame.extend_from_slice(&length.to_le_bytes());
    frame.push(kind);
    frame.extend_from_slice(payload);
    let sent = if descriptors.is_empty() { 0 } else { send_first(socket, &frame, descriptors)? };
    socket.write_all(&frame[sent..])
}

fn send_first(socket: &UnixStream, frame: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !ancillary.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(io::Error::other("more descriptors than a frame brings"));
    }
    loop {
        // A socket that is closed at the other end is an error here, no signal.
        match sendmsg(socket, &[IoSlice::new(frame)], &mut ancillary, SendFlags::NOSIGNAL) {
            Err(rustix::io::Errno::INTR) => {}
            sent => return Ok(sent?),
        }
    }
}

/// Hears one thing, and the descriptors that came with its beginning.
pub fn read(socket: &mut UnixStream) -> io::Result<(u8, Vec<u8>, Vec<OwnedFd>)> {
    let mut length = [0; 4];
    let (first, descriptors) = read_first(socket, &mut length)?;
    socket.read_exact(&mut length[first..])?;
    let length = u32::from_le_bytes(length) as usize;
    if length == 0 || length > FRAME_BYTES_MAX {
        return Err(io::Error::new(io::ErrorKind::InvalidData, format!("a frame of {length} bytes")));
    }
    let mut frame = vec![0; length];
    socket.read_exact(&mut frame)?;
    let payload = frame.split_off(1);
    Ok((frame[0], payload, descriptors))
}

/// Descriptors travel with the first byte that they were sent with, so only the first read can bring some.
fn read_first(socket: &UnixStream, buffer: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let received = loop {
        match recvmsg(socket, &mut [IoSliceMut::new(buffer)], &mut ancillary, RecvFlags::CMSG_CLOEXEC) {
            Err(rustix::io::Errno::INTR) => {}
            other => break other?,
        }
    };
    if received.bytes == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let mut descriptors = Vec::new();
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = message {
            descriptors.extend(received);
        }
    }
    Ok((received.bytes, descriptors))
}
