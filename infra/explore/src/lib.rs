//! Explores small cases of Ebb's pure machines to the last state. What a random walk does not meet in a million steps, a short path
//! among few parts often does; here every path of a case is walked.
//!
//! Safety only: a property holds in every state that can be reached. Each case also names what must be reached, so that green means
//! something. Nothing here is shipped, and nothing of the services depends on it.

use stateright::{Checker, Model};
use std::fmt::Debug;
use std::hash::Hash;
use std::time::Instant;

/// Explores a case to its end, prints its size, and panics with the shortest way to a broken property if there is one.
pub fn explore<M>(case: &str, model: M)
where
    M: Model + Send + Sync + 'static,
    M::State: Clone + Debug + Hash + PartialEq + Send + Sync + 'static,
    M::Action: Clone + Debug + PartialEq + Send + Sync + 'static,
{
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let begun = Instant::now();
    let checker = model.checker().threads(threads).spawn_bfs().join();
    println!(
        "{case}: {} states, {} of them different, depth {}, {:.1} s",
        checker.state_count(),
        checker.unique_state_count(),
        checker.max_depth(),
        begun.elapsed().as_secs_f64()
    );
    checker.assert_properties();
}
