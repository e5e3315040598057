//! What an executor says, on its way into the store: in pieces of a fixed size, of which the newest is written again as it grows. Decides which
//! piece is written when, and what is given up when the store is slow or the executor says too much. One machine per executor, beside
//! the agent's own: nothing of it touches slots.

use std::collections::VecDeque;
use storage_keys::LOG_CHUNK_BYTES as CHUNK_BYTES;

/// Pieces kept in the store for one executor, the growing one among them: 8 MiB, the newest.
pub const CHUNKS_KEPT: usize = 32;
/// Pieces that wait for the store; beyond, the oldest is given up. It is in the agent's own log file all the same.
const CHUNKS_WAITING_MAX: usize = 4;
/// From the first word that is not in the store until it is written: whoever follows a job sees what it says within seconds, and a talkative one
/// costs 20 requests a minute. Not at once, because all members say something when a membership changes, just when their first step is waited for,
/// and a store on the machine's own disk then syncs beside the log.
pub const WRITE_INTERVAL_MS: u64 = 3_000;
/// Writes tried after the executor has ended, each under the store's own retries; then the rest is given up.
const LAST_WRITES_MAX: u32 = 3;

/// What is to be done; one at a time, each ends in [`LogChunks::done`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LogWrite {
    /// Write this piece, whatever was there.
    Put {
        /// Its number.
        chunk: u64,
        /// All that is in it by now.
        bytes: Vec<u8>,
    },
    /// Delete this piece.
    Delete {
        /// Its number.
        chunk: u64,
    },
}

/// The log of one executor.
#[derive(Debug, Default)]
pub struct LogChunks {
    /// Number of the piece that `waiting` begins with.
    first: u64,
    /// What is not in the store in full pieces yet.
    waiting: Vec<u8>,
    /// Bytes of the first waiting piece that are in the store.
    stored: usize,
    /// Numbers of the pieces in the store, oldest first. Those that were given up are not among them.
    in_store: VecDeque<u64>,
    /// What is under way.
    under_way: Option<LogWrite>,
    /// When what waits is to be written, unless a whole piece waits and the last write was possible; nothing while nothing waits.
    due_ms: Option<u64>,
    /// Whether the last write was not possible.
    failed: bool,
    /// Tries since the executor ended without success; `None` while it lives.
    last_writes: Option<u32>,
}

impl LogChunks {
    /// Takes in what the executor said.
    pub fn take(&mut self, bytes: &[u8]) {
        self.waiting.extend_from_slice(bytes);
        let over = (self.waiting.len() / CHUNK_BYTES).saturating_sub(CHUNKS_WAITING_MAX);
        if over > 0 {
            self.waiting.drain(..over * CHUNK_BYTES);
            self.first += over as u64;
            self.stored = 0;
        }
    }

    /// Nothing more will be said.
    pub fn end(&mut self) {
        self.last_writes.get_or_insert(0);
    }

    /// What is to be done now.
    pub fn next(&mut self, now_ms: u64) -> Option<LogWrite> {
        if self.under_way.is_some() || self.is_over() {
            return None;
        }
        let at_once = (self.waiting.len() >= CHUNK_BYTES && !self.failed) || self.last_writes.is_some();
        let write = match self.in_store.front() {
            // Makes room for a piece that is not there yet.
            Some(oldest) if self.in_store.len() >= CHUNKS_KEPT && self.in_store.back() != Some(&self.first) => {
                LogWrite::Delete { chunk: *oldest }
            }
            _ if self.waiting.len() <= self.stored => return None,
            _ if !at_once && now_ms < *self.due_ms.get_or_insert(now_ms.saturating_add(WRITE_INTERVAL_MS)) => {
                return None;
            }
            _ => {
                self.due_ms = None;
                let bytes = self.waiting[..self.waiting.len().min(CHUNK_BYTES)].to_vec();
                LogWrite::Put { chunk: self.first, bytes }
            }
        };
        self.under_way = Some(write.clone());
        Some(write)
    }

    /// What was under way is done, or was not possible.
    pub fn done(&mut self, possible: bool) {
        let Some(write) = self.under_way.take() else { return };
        self.failed = !possible;
        if self.failed {
            self.last_writes = self.last_writes.map(|tries| tries + 1);
        }
        match write {
            LogWrite::Put { chunk, bytes } if possible => {
                if self.in_store.back() != Some(&chunk) {
                    self.in_store.push_back(chunk);
                }
                // It may have been given up meanwhile, with what was said after it.
                if chunk == self.first && bytes.len() == CHUNK_BYTES {
                    self.waiting.drain(..CHUNK_BYTES);
                    self.first += 1;
                    self.stored = 0;
                } else if chunk == self.first {
                    self.stored = bytes.len();
                }
            }
            LogWrite::Put { .. } => {}
            // One that cannot be deleted is left to the sweep: it must not hold up what is said.
            LogWrite::Delete { .. } => drop(self.in_store.pop_front()),
        }
    }

    /// When there may be something to do that is not there now.
    #[must_use]
    pub fn wake_at_ms(&self) -> Option<u64> {
        let waits = self.under_way.is_none() && !self.is_over() && self.waiting.len() > self.stored;
        self.due_ms.filter(|_| waits)
    }

    /// Whether the executor has ended and all of it is in the store, or given up.
    #[must_use]
    pub fn is_over(&self) -> bool {
        let Some(tries) = self.last_writes else { return false };
        self.under_way.is_none() && (tries >= LAST_WRITES_MAX || self.waiting.len() <= self.stored)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Does what is to be done at a time, as long as there is something; what that was.
    fn run(log: &mut LogChunks, now_ms: u64, possible: bool) -> Vec<(char, u64, usize)> {
        let mut did = Vec::new();
        while let Some(write) = log.next(now_ms) {
            did.push(match write {
                LogWrite::Put { chunk, bytes } => ('+', chunk, bytes.len()),
                LogWrite::Delete { chunk } => ('-', chunk, 0),
            });
            log.done(possible);
            if !possible {
                break;
            }
        }
        did
    }

    #[test]
    fn what_is_said_is_written_together_after_a_while_and_at_the_end() {
        let mut log = LogChunks::default();
        log.take(b"one");
        assert_eq!((run(&mut log, 50, true), log.wake_at_ms()), (vec![], Some(50 + WRITE_INTERVAL_MS)));
        log.take(b"two");
        assert_eq!((run(&mut log, 100, true), log.wake_at_ms()), (vec![], Some(50 + WRITE_INTERVAL_MS)));
        assert_eq!(run(&mut log, 50 + WRITE_INTERVAL_MS, true), [('+', 0, 6)]);
        assert_eq!((run(&mut log, 60_000, true), log.wake_at_ms()), (vec![], None), "nothing new");
        log.take(b"three");
        // What comes after a long silence waits as well: others have something to say at the same moment.
        assert_eq!(run(&mut log, 60_000, true), []);
        log.end();
        assert!(!log.is_over());
        assert_eq!(run(&mut log, 60_001, true), [('+', 0, 11)]);
        assert!(log.is_over());
    }

    #[test]
    fn full_pieces_go_at_once_and_the_oldest_are_deleted() {
        let mut log = LogChunks::default();
        let mut did = Vec::new();
        for _ in 0..CHUNKS_KEPT + 2 {
            log.take(&vec![b'x'; CHUNK_BYTES]);
            did.extend(run(&mut log, 0, true));
        }
        let deleted: Vec<u64> = did.iter().filter(|(what, ..)| *what == '-').map(|(_, chunk, _)| *chunk).collect();
        assert_eq!((did.len(), deleted), (CHUNKS_KEPT + 2 + 3, vec![0, 1, 2]));
    }

    /// A request for each number that was given up, one after the other, would hold up everything that is to be written.
    #[test]
    fn only_what_is_in_the_store_is_deleted() {
        let mut log = LogChunks::default();
        for _ in 0..CHUNKS_KEPT {
            log.take(&[b'x'; CHUNK_BYTES]);
            run(&mut log, 0, true);
        }
        run(&mut log, 0, true);
        log.take(&vec![b'x'; 1_000 * CHUNK_BYTES]);
        let did = run(&mut log, 0, true);
        let newest = (CHUNKS_KEPT + 1_000) as u64;
        let written: Vec<u64> = did.iter().filter(|(what, ..)| *what == '+').map(|(_, chunk, _)| *chunk).collect();
        assert_eq!(written, (newest - CHUNKS_WAITING_MAX as u64..newest).collect::<Vec<_>>());
        assert_eq!(did.len(), 2 * CHUNKS_WAITING_MAX, "and one is deleted for each: {did:?}");
        assert!(log.in_store.len() < CHUNKS_KEPT);
    }

    #[test]
    fn a_store_that_refuses_costs_the_oldest_and_does_not_hold_up_the_end() {
        let mut log = LogChunks::default();
        log.take(&vec![b'x'; 10 * CHUNK_BYTES + 1]);
        assert_eq!(log.waiting.len(), CHUNKS_WAITING_MAX * CHUNK_BYTES + 1, "the oldest are given up");
        assert_eq!(run(&mut log, 0, false), [('+', 6, CHUNK_BYTES)]);
        // A whole piece waits for the same pause as any other: it must not be tried again and again without one.
        assert_eq!((log.next(0), log.wake_at_ms()), (None, Some(WRITE_INTERVAL_MS)));
        assert_eq!(run(&mut log, WRITE_INTERVAL_MS, false), [('+', 6, CHUNK_BYTES)]);
        log.take(&vec![b'y'; 100 * CHUNK_BYTES]);
        assert!(log.waiting.len() < (CHUNKS_WAITING_MAX + 1) * CHUNK_BYTES);
        log.end();
        for _ in 0..LAST_WRITES_MAX {
            assert!(!log.is_over());
            run(&mut log, 1, false);
        }
        assert!(log.is_over() && log.next(2).is_none());
    }

    #[test]
    fn what_is_under_way_is_whole_when_it_is_done() {
        let mut log = LogChunks::default();
        log.take(&vec![b'x'; CHUNK_BYTES]);
        assert!(matches!(log.next(0), Some(LogWrite::Put { chunk: 0, .. })));
        log.take(&vec![b'y'; 20 * CHUNK_BYTES]);
        assert!(log.next(0).is_none(), "one at a time");
        log.done(true);
        assert!(matches!(log.next(0), Some(LogWrite::Put { chunk: 17, bytes }) if bytes[0] == b'y'));
    }
}
