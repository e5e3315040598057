//! Elements of a stretch as a peer sent them: copied into a piece of this process's, or lent, and then read where they lie. One that is dropped gives
//! back what it was lent.

use crate::buffers::{Buffer, Pool};
use crate::lending::Borrowed;
use crate::wire::PIECE_ELEMENTS;
use std::ops::Deref;

/// Elements that came from a peer, or that were made of such.
#[derive(Debug)]
pub enum Stretch {
    /// In memory of this process, of which they are the beginning.
    Here {
        /// Holds them.
        piece: Buffer,
        /// How many they are.
        len: usize,
    },
    /// In memory of the peer.
    Lent(Borrowed),
}

impl Stretch {
    /// Room for so many elements, with anything in it.
    #[must_use]
    pub fn room(pieces: &Pool, len: usize) -> Self {
        // What peers of this build send is never longer than a piece.
        let piece = if len <= PIECE_ELEMENTS { pieces.take() } else { Buffer::from(vec![0.0; len]) };
        Self::Here { piece, len }
    }

    /// The elements, where they may be changed.
    pub fn here_mut(&mut self) -> Option<&mut [f32]> {
        match self {
            Self::Here { piece, len } => Some(&mut piece[..*len]),
            Self::Lent(_) => None,
        }
    }

    /// What holds the elements, from its beginning on: a piece of this process's, into which they are copied if they are lent.
    #[must_use]
    pub fn into_piece(self, pieces: &Pool) -> Buffer {
        match self {
            Self::Here { piece, .. } => piece,
            Self::Lent(lent) => {
                let mut copy = Self::room(pieces, lent.len());
                if let Some(copy) = copy.here_mut() {
                    copy.copy_from_slice(&lent);
                }
                copy.into_piece(pieces)
            }
        }
    }
}

impl From<Vec<f32>> for Stretch {
    fn from(elements: Vec<f32>) -> Self {
        let len = elements.len();
        Self::Here { piece: elements.into(), len }
    }
}

impl Deref for Stretch {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        match self {
            Self::Here { piece, len } => &piece[..*len],
            Self::Lent(lent) => lent,
        }
    }
}
