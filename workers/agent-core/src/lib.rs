//! What a node agent decides, as a pure machine: [`Agent::handle`] takes one happening and the time, and gives what is to be done.
//! No I/O, no clock, no chance of its own, no hash order. `workers/agent` is the shell around it: sockets, processes, files.
//!
//! What it promises. A slot is called free only when its executor is reaped, and what a fleet was told survives a crash. Nothing is
//! started on a slot that a fleet took back before orders come that know of it, and nothing that has to leave is started at all. No
//! executor outlives its deadline, nor a controller's silence beyond the lease, however slow disk, controller or caller are. Orders of a
//! replaced controller, orders older than ones already followed, and orders from before the controller knew of this process have no
//! effect. Reports are numbered and repeated until taken.
//!
//! Reading order: `words.rs` (what comes in and goes out), `machine.rs` (the whole), `slot.rs` (what is known of a slot), `orders.rs` (from
//! wanted to done), `executors.rs` (what executors say and how they end), `sharing.rs` (what a guest gets of a slot's
//! time), `load.rs` (what a host uses of it), `take_back.rs` (the fleet's way), `link.rs` and `outbox.rs` (the
//! controller's way), `burst.rs` (what a link carries), `log_chunks.rs` (what executors say, into the store), `warm.rs` (processes with PyTorch imported).
//!
//! Next on a job's path: `workers/agent/src/lib.rs`.

mod burst;
mod executors;
#[cfg(test)]
mod fixtures;
mod link;
mod load;
mod log_chunks;
mod machine;
mod orders;
mod outbox;
mod sharing;
mod slot;
mod take_back;
mod warm;
mod words;

pub use burst::{BURST_BYTES_MAX, BURST_TIME_MAX, Burst, of_directions};
pub use executors::{LOOK_INTERVAL_MS, SILENT_LOOKS_MAX};
pub use link::{HEARTBEAT_INTERVAL_MS, SILENCE_MAX_MS};
pub use load::{LOAD_WINDOW_MS, READINGS_MIN};
pub use log_chunks::{LogChunks, LogWrite};
pub use machine::{Agent, Config, FLUSH_TIMEOUT_MS, STOP_GRACE_MS};
pub use sharing::{
    REST_MS, SHARE_ALL, SHARE_FIRST, SHARE_MIN, SHARE_STEP, SLOWER_MAX_MILLI, STEADY_WORDS, USUAL_WORDS,
};
pub use slot::{EXIT_STATUS_PROTOCOL, SlotState, SlotView};
pub use take_back::{KEEP_AGAIN_AFTER_MS, LEASE_END_DEADLINE_MS, REAP_TIMEOUT_MS, REQUESTS_MAX};
pub use warm::{
    Cold, GivenUp, WARM_AGAIN_AFTER_MS, WARM_BYTES_MAX, WARM_FORK_TIMEOUT_MS, WARM_IDLE_MS, WARM_IMPORT_TIMEOUT_MS,
    WARM_MAX, WARM_WAITING_MAX, WarmIn, WarmOut, WarmPool,
};
pub use words::{Answer, ExecutorWord, FreedSlot, In, KillCause, LinkEnd, LinkWord, Moment, Note, Out, ProcessEnd};
