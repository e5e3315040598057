//! The words that fields of public events say. All lists are open: later builds may add to them, none is taken away.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

macro_rules! words {
    ($($(#[doc = $doc:literal])* $name:ident { $($(#[$word_doc:meta])* $word:ident,)* })*) => {$(
        $(#[doc = $doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
        #[serde(rename_all = "snake_case")]
        pub enum $name {
            $($(#[$word_doc])* $word,)*
        }
    )*};
}

words! {
    /// Why a job has what it has.
    PlanCause {
        /// Its guaranteed minimum.
        Guarantee,
        /// More than the minimum, because slots were there and the policy gave them to this job.
        Gain,
        /// Fewer, because a fleet takes slots back.
        Reclaimed,
        /// Fewer, because another job goes first.
        GaveWay,
        /// A process or a server was lost.
        Lost,
        /// It waits, is suspended or has ended.
        Nothing,
        /// Fewer, because on fewer it is as fast, or faster, as far as its speeds were measured.
        Speed,
        /// Fewer, because the link of a server is too slow for its gradients.
        Link,
        /// More or fewer for a while, to be measured at that size, as its spec asks for.
        Profile,
    }
    /// What a job waits for.
    WaitKind {
        /// Slots that others have.
        Slots,
        /// An earlier or more important job.
        Job,
        /// Its user.
        Resume,
        /// Any slot to be lent.
        Offers,
        /// A pause after repeated failures.
        Backoff,
        /// A slot with a device, which no fleet has.
        Device,
        /// A slot of the numeric class in which it began: all others that are lent are of another one.
        Class,
        /// Nothing: on more slots it was measured to be no faster.
        Speed,
        /// Its tenant's quota, which other jobs of the tenant have.
        Quota,
        /// A server with a faster link: those of all others that lend would slow each of its steps.
        Link,
        /// A slot of the type that it is on: all others that are lent are of another one, and its spec does not let it be on several.
        Type,
    }
    /// What the members of a job that makes no progress wait for.
    StallCause {
        /// Each other.
        Peers,
        /// One that does not end a unit of computing.
        Unit,
        /// Bytes that do not arrive, or far too slowly.
        Bytes,
        /// The object store.
        Store,
    }
    /// What is done about a job that makes no progress.
    StallRemedy {
        /// Its members come together anew.
        Round,
        /// The blamed are replaced.
        WithoutBlamed,
        /// It goes back to its last checkpoint, on other slots.
        Restart,
        /// It is suspended until its user resumes it.
        Suspend,
        /// It fails: the same computation hung on two slots.
        Fail,
        /// Nothing: it goes on by itself when the store answers.
        Wait,
    }
    /// Why a job does not use a slot.
    AvoidCause {
        /// The process there could not be linked with the others.
        Unreachable,
        /// The process there hung, or moved no bytes.
        Hung,
        /// The job's own code computes other bits there: another processor, device or version of something.
        Class,
        /// The process there was far slower than the others, and another slot was idle.
        Slow,
    }
    /// What takes a straggler longer than the others: the larger part of the difference.
    StragglerCause {
        /// It computes more slowly.
        Compute,
        /// It waits for rows.
        Data,
        /// Its link became slow: nobody's gradient takes longer, and everybody's step does.
        Network,
    }
    /// Why a newcomer did not come in.
    GrowthFailure {
        /// It was lost, or its slot went back, before it held the replica.
        Lost,
        /// It was not ready in time.
        Late,
        /// Its copy of the replica stood still, or was far slower than the link allows.
        Slow,
    }
    /// Why a process has to leave.
    LeaveCause {
        /// Its slot goes back to its fleet.
        Reclaim,
        /// The plan gives the slot to another job, or to none.
        Plan,
        /// Its job ended or is suspended.
        JobEnd,
        /// It was never part of a membership that goes on.
        Useless,
    }
    /// How a process ended.
    Exit {
        /// As asked.
        Left,
        /// With an exit status of its own.
        Status,
        /// By a signal that nobody here sent.
        Signal,
        /// Killed at a deadline or on an order.
        Killed,
        /// It could not be started.
        NotStarted,
        /// It said nothing for seconds, and was killed.
        Silent,
        /// The device of its slot is gone.
        DeviceLost,
    }
    /// How it was noticed that a member is lost.
    LossNotice {
        /// Its process ended.
        Exit,
        /// It said nothing for seconds, and its agent killed it.
        Silence,
        /// Its agent was not heard for its lease.
        Lease,
        /// Another agent is on its server, which has reaped what the one before had started.
        Agent,
        /// It cannot be linked with the other members.
        Link,
        /// It held up the others.
        Stall,
    }
    /// Why a job goes back.
    RestartCause {
        /// A member was lost, and nobody that was to stay had the replica.
        Lost,
        /// Whoever had the replica was told to leave: the job's slots changed.
        Left,
        /// It did not get past a step.
        Stalled,
        /// Replicas of its members differed.
        Differed,
    }
    /// How the members of a generation come to one state.
    Entry {
        /// All begin with the initial replica.
        Fresh,
        /// All load a checkpoint.
        Checkpoint,
        /// Those who are there go on, and send newcomers the replica.
        Switch,
        /// Members were lost: the newest replica among the survivors counts.
        Recover,
    }
    /// Why a proposed membership is given up.
    AbandonCause {
        /// It was not in force by its deadline.
        Deadline,
        /// A member was lost or has to leave.
        MemberLost,
        /// The plan changed first.
        Superseded,
        /// Some of its members cannot be linked.
        Unlinked,
    }
    /// How a fleet lends.
    Offers {
        /// By naming slots.
        Explicit,
        /// By needing fewer.
        ByDemand,
    }
    /// Why a slot goes back.
    ReclaimCause {
        /// The fleet's need rose.
        Demand,
        /// The fleet named it.
        Named,
        /// It was taken at its agent.
        Direct,
        /// The fleet no longer declares it.
        Undeclared,
        /// The fleet was recalled.
        Recall,
        /// The fleet is likely to need it soon.
        Forecast,
    }
    /// Why a command had no effect.
    Refusal {
        /// It names something that is not there.
        Unknown,
        /// The job is in another phase.
        WrongPhase,
        /// The name is taken.
        Exists,
        /// Something that is not finished uses it.
        InUse,
        /// A newer signal was taken.
        Old,
        /// A bound of the service is reached.
        Limit,
        /// A value does not fit what it refers to.
        Unfit,
        /// It was not (any more) what the command expected.
        Changed,
    }
}
