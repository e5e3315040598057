//! By which rules a state follows from its facts: their version, which stands in the log where it begins. Says nothing of how records are written (`batch.rs`).
//!
//! Every build has to come to the same state of an old log. What another rule would make of facts that are there already is therefore begun by a fact
//! (`PolicyChosen`), and what stands before it is folded by the rules of its time. A number that is here is never given to another rule. A build that leads after a
//! newer one begins its own rules again; what the newer one wrote until then it folds by all rules that it knows.

use minicbor::{Decode, Encode};
use serde::Serialize;

/// A version of the rules; a state that was told of none goes by the first ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Encode, Decode, Serialize)]
#[cbor(transparent)]
#[serde(transparent)]
pub struct FoldVersion(#[n(0)] u16);

impl FoldVersion {
    /// A need that stays as it is counts as what its fleet needs at those times of the day.
    pub const UNCHANGED_NEEDS: Self = Self(1);
    /// What types of slots took a job is remembered for the jobs after it.
    pub const TYPES_OF_ALL: Self = Self(1);
    /// By which this build goes.
    pub const NEWEST: Self = Self(1);
}
