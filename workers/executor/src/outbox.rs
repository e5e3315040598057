//! What is to be written on a link, and the thread that writes it.
//!
//! The trainer never waits here: it puts slices into a link's queue, and the writer thread cuts them into pieces. What is queued shares
//! the trainer's buffers; a queue that overflows means a peer that does not read, and its link is cut.

use crate::buffers::SharedElements;
use crate::lending::Lender;
use crate::wire::{ELEMENT_LEN, Frame, HEADER_LEN, Header, LOAN_LEN, Loan, PIECE_ELEMENTS, bytes_of};
use events_schema::{Generation, Step};
use std::io::{self, IoSlice, Write};
use std::net::{Shutdown, TcpStream};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use workers_session::{Peer, Tag};

/// Entries in a link's queue: pieces of a chunk of the largest model, twice.
const OUTGOING_MAX: usize = 16_384;
/// Entries of a queue that are written before what was said first counts as written.
const TOGETHER_MAX: usize = 64;
/// A link with nothing else to say says that it lives this often.
const PING_INTERVAL: Duration = Duration::from_secs(1);
/// A longer loan is memory that its lender misses, and is given back at once.
const RETURNED_LATER_ELEMENTS_MAX: usize = PIECE_ELEMENTS;
/// So many shorter ones are given back without waiting for something else to write: what they hold is 4 MiB at most.
const RETURNED_LATER_MAX: usize = 16;

/// What is to be written on a link.
#[derive(Debug)]
pub struct Outbox {
    queue: SyncSender<Outgoing>,
    stream: TcpStream,
    sent: Sent,
    returns: Returns,
}

/// What was written, on all links.
#[derive(Debug, Clone, Default)]
pub struct Sent {
    /// Bulk payload written or lent.
    pub bulk_bytes: Arc<AtomicU64>,
    /// All else.
    pub header_bytes: Arc<AtomicU64>,
    /// Entries put into queues and not yet written.
    pub unwritten: Arc<AtomicUsize>,
}

/// The other end of an outbox: what is next written of it.
#[derive(Debug)]
pub struct Queue {
    outgoing: Receiver<Outgoing>,
    sent: Sent,
    returns: Returns,
}

/// Short loans that were read, to be given back with what is written next. Nobody is woken for them.
type Returns = Arc<Mutex<Vec<u64>>>;

/// What a writer thread writes.
pub enum Outgoing {
    /// A whole frame.
    Frame(Vec<u8>),
    /// A stretch of a vector, which is lent where that can be, or else cut into pieces.
    Bulk {
        /// Of its first piece, apart from its length.
        header: Header,
        /// The vector.
        data: SharedElements,
        /// Which of it.
        range: Range<usize>,
    },
}

impl std::fmt::Debug for Outgoing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Frame(bytes) => f.debug_tuple("Frame").field(&bytes.len()).finish(),
            Self::Bulk { range, .. } => f.debug_tuple("Bulk").field(range).finish(),
        }
    }
}

impl Outbox {
    /// Of a connection, which nobody writes on yet.
    pub fn new(stream: &TcpStream, sent: Sent) -> io::Result<(Self, Queue)> {
        let (queue, outgoing) = sync_channel(OUTGOING_MAX);
        let returns = Returns::default();
        let written = Queue { outgoing, sent: sent.clone(), returns: Arc::clone(&returns) };
        Ok((Self { queue, stream: stream.try_clone()?, sent, returns }, written))
    }

    /// Ends the connection.
    pub fn end(&self) {
        // It may have ended by itself.
        let _ = self.stream.shutdown(Shutdown::Both);
    }

    /// To be written after what was put there before.
    pub fn put(&self, outgoing: Outgoing) {
        self.sent.unwritten.fetch_add(1, Ordering::Relaxed);
        if let Err(error) = self.queue.try_send(outgoing) {
            self.sent.unwritten.fetch_sub(1, Ordering::Relaxed);
            if matches!(error, TrySendError::Full(_)) {
                tracing::error!("a peer does not read; its link is cut");
                // Its reader sees the end and tells of it.
                self.end();
            }
        }
    }

    /// What a peer has lent is not read any more.
    pub fn give_back(&self, loan: u64, elements: usize) {
        let mut returns = self.returns.lock().unwrap_or_else(PoisonError::into_inner);
        returns.push(loan);
        if elements > RETURNED_LATER_ELEMENTS_MAX || returns.len() >= RETURNED_LATER_MAX {
            let frames = returned(&mut returns);
            drop(returns);
            self.put(Outgoing::Frame(frames));
        }
    }
}

/// The frames that give loans back.
fn returned(loans: &mut Vec<u64>) -> Vec<u8> {
    loans.drain(..).flat_map(|loan| frame(Frame::Returned, &loan.to_le_bytes())).collect()
}

/// A frame that belongs to no step.
#[must_use]
pub fn frame(frame: Frame, payload: &[u8]) -> Vec<u8> {
    let tag = Tag { generation: Generation(0), revision: 0 };
    let header = Header { frame, tag, step: Step(0), offset: 0, payload_len: payload.len() as u32 };
    [&header.encode(), payload].concat()
}

impl Queue {
    /// Starts the thread that writes it.
    pub fn write_to(self, peer: Peer, stream: &TcpStream, lender: &Arc<Lender>) -> io::Result<()> {
        let (stream, lender) = (stream.try_clone()?, Arc::clone(lender));
        let writer = move || {
            if let Err(error) = self.write_all(&stream, &lender) {
                tracing::debug!(%peer, %error, "writing to a peer ended");
            }
            // Wakes the reader, which tells the trainer.
            let _ = stream.shutdown(Shutdown::Both);
            drop(Taken { unwritten: &self.sent.unwritten, entries: self.outgoing.try_iter().count() });
        };
        std::thread::Builder::new().name(format!("ebb-to-{peer}")).spawn(writer).map(drop)
    }

    fn write_all(&self, mut stream: &TcpStream, lender: &Lender) -> io::Result<()> {
        let Self { outgoing, sent, returns } = self;
        let returned = || returned(&mut returns.lock().unwrap_or_else(PoisonError::into_inner));
        // What is short is written together: each write wakes the peer's reader, and that its trainer.
        let mut short = Vec::new();
        loop {
            let first = match outgoing.recv_timeout(PING_INTERVAL) {
                Ok(first) => first,
                Err(RecvTimeoutError::Timeout) => {
                    short.extend(returned());
                    write_short(sent, stream, &mut short)?;
                    stream.write_all(&frame(Frame::Ping, &[]))?;
                    continue;
                }
                Err(RecvTimeoutError::Disconnected) => return Ok(()),
            };
            let mut taken = Taken { unwritten: &sent.unwritten, entries: 0 };
            short.extend(returned());
            for entry in std::iter::once(first).chain(outgoing.try_iter()).take(TOGETHER_MAX) {
                taken.entries += 1;
                match entry {
                    Outgoing::Frame(bytes) => short.extend(bytes),
                    Outgoing::Bulk { header, data, range } => match lender.lend(&data, &range) {
                        Some(loan) => short.extend(lent(sent, header, &loan)),
                        None => {
                            write_short(sent, stream, &mut short)?;
                            write_pieces(sent, stream, header, &data, range)?;
                        }
                    },
                }
            }
            write_short(sent, stream, &mut short)?;
        }
    }
}

/// Entries of queues that are being written: they count as unwritten until they are, or never will be.
struct Taken<'a> {
    unwritten: &'a AtomicUsize,
    entries: usize,
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        self.unwritten.fetch_sub(self.entries, Ordering::Release);
    }
}

fn write_short(sent: &Sent, mut stream: &TcpStream, short: &mut Vec<u8>) -> io::Result<()> {
    stream.write_all(short)?;
    sent.header_bytes.fetch_add(short.len() as u64, Ordering::Relaxed);
    short.clear();
    Ok(())
}

/// The frame that says what is lent.
fn lent(sent: &Sent, header: Header, loan: &Loan) -> Vec<u8> {
    let Frame::Bulk(kind) = header.frame else { return Vec::new() };
    let header = Header { frame: Frame::Lent(kind), payload_len: LOAN_LEN as u32, ..header };
    sent.bulk_bytes.fetch_add(ELEMENT_LEN as u64 * loan.elements, Ordering::Relaxed);
    [&header.encode()[..], &loan.encode()].concat()
}

fn write_pieces(
    sent: &Sent,
    stream: &TcpStream,
    header: Header,
    data: &SharedElements,
    range: Range<usize>,
) -> io::Result<()> {
    for start in range.clone().step_by(PIECE_ELEMENTS) {
        let piece = bytes_of(&data[start..(start + PIECE_ELEMENTS).min(range.end)]);
        let offset = header.offset + (start - range.start) as u64;
        let header = Header { offset, payload_len: piece.len() as u32, ..header };
        write_both(stream, &header.encode(), piece)?;
        sent.bulk_bytes.fetch_add(piece.len() as u64, Ordering::Relaxed);
        sent.header_bytes.fetch_add(HEADER_LEN as u64, Ordering::Relaxed);
    }
    Ok(())
}

/// Writes one after the other, from where they lie.
fn write_both(mut stream: &TcpStream, first: &[u8], second: &[u8]) -> io::Result<()> {
    let mut slices = [IoSlice::new(first), IoSlice::new(second)];
    let mut slices = &mut slices[..];
    while !slices.is_empty() {
        match stream.write_vectored(slices) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => IoSlice::advance_slices(&mut slices, written),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
