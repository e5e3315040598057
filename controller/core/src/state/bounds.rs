//! How much of the past a state keeps. Part of the record format, not of policy: the fold drops what is beyond a bound, so every build has to
//! drop the same. A number here may change only with a fact that says from where on the new one holds.

/// Ended jobs; the oldest is forgotten first (its model and checkpoints stay in the store).
pub const JOBS_ENDED_MAX: usize = 100_000;
/// Newest command ids, so that a repeated one has no second effect. A client repeats within minutes; at 1,000 commands a second this is more
/// than one and a half.
pub const COMMANDS_REMEMBERED: usize = 100_000;
/// Retired checkpoints until their objects are deleted; a shell that is further behind leaves garbage, not harm.
pub const RETIRED_MAX: usize = 10_000;
/// Findings of damaged checkpoints of one job.
pub const DAMAGED_MAX: usize = 16;
/// Abandoned generations of a job that may still report themselves active.
pub const ABANDONED_MAX: usize = 4;
