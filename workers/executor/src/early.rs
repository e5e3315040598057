//! Bulk data that arrived before this executor was where it belongs: a peer may be one step, or one membership, ahead.

use crate::wire::Header;
use events_schema::Step;
use workers_session::{Peer, Tag};

/// Bulk frames kept for later, bounded in bytes.
#[derive(Debug)]
pub struct Early {
    frames: Vec<(Peer, Header, Vec<f32>)>,
    bytes: usize,
    bytes_max: usize,
}

impl Early {
    /// Room for what correct peers can be ahead: at most a few gradients per tree level of theirs.
    #[must_use]
    pub fn new(parameter_count: usize) -> Self {
        /// Gradients' worth of data: partial sums of one chunk from every member, its sum, and a replica.
        const GRADIENTS_MAX: usize = 16;
        /// Small models of many members: headers and pieces do not scale with the parameters.
        const FLOOR: usize = 64 << 20;
        Self {
            frames: Vec::new(),
            bytes: 0,
            bytes_max: FLOOR.saturating_add(parameter_count.saturating_mul(4 * GRADIENTS_MAX)),
        }
    }

    /// Keeps a frame; `false` when there is no room, and its sender must be cut off.
    pub fn keep(&mut self, from: Peer, header: Header, elements: Vec<f32>) -> bool {
        let bytes = elements.len() * 4;
        if self.bytes + bytes > self.bytes_max {
            return false;
        }
        self.bytes += bytes;
        self.frames.push((from, header, elements));
        true
    }

    /// Takes out what belongs to a membership and step, in order of arrival, and forgets what is older.
    pub fn take(&mut self, tag: Tag, step: Step) -> Vec<(Peer, Header, Vec<f32>)> {
        if self.frames.is_empty() {
            return Vec::new();
        }
        let (mut due, mut later) = (Vec::new(), Vec::new());
        for frame in std::mem::take(&mut self.frames) {
            let at = (frame.1.tag, frame.1.step);
            if at > (tag, step) {
                later.push(frame);
            } else if at == (tag, step) {
                due.push(frame);
            }
        }
        self.bytes = later.iter().map(|(_, _, elements)| elements.len() * 4).sum();
        self.frames = later;
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Kind;
    use events_schema::Generation;

    #[test]
    fn gives_what_is_due_forgets_what_is_old_and_has_a_bound() {
        let tag = |g| Tag { generation: Generation(g), revision: 0 };
        let header = |g, s| Header { kind: Kind::Reduced, tag: tag(g), step: Step(s), offset: 0, payload_len: 4 };
        let mut early = Early::new(1);
        for (g, s) in [(1, 4), (1, 5), (2, 5), (1, 6)] {
            assert!(early.keep(Peer(0), header(g, s), vec![s as f32]));
        }
        let due = early.take(tag(1), Step(5));
        assert_eq!(due.iter().map(|(_, h, _)| (h.tag, h.step)).collect::<Vec<_>>(), vec![(tag(1), Step(5))]);
        assert_eq!(early.take(tag(2), Step(5)).len(), 1);
        assert!(early.take(tag(1), Step(6)).is_empty(), "older than what was taken last");
        assert!(!early.keep(Peer(0), header(9, 9), vec![0.0; 40 << 20]));
    }
}
