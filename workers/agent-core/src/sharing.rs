//! How much of a slot's time the executor on its guest slot gets: as much as leaves the host's executor as fast as it is alone. After AntMan (OSDI 2020, §3.2): "the
//! local coordinator" limits opportunistic jobs step by step, driven by the mini-batch time of the guaranteed one.
//!
//! What is compared is how long a gradient of one rank takes the host, which it says twice a second: the same work each time, whatever its job's other members
//! are like. It is known what is usual from when no guest computes. A guest begins on a small share and gets more after each while in which it computed and the host
//! was as fast as usual; when that is not, the share is halved at once, and where even a small one is too much, the guest rests, long enough to learn anew what is
//! usual. Nobody is ever ended for this. Where nobody is on the slot the guest has all of its time.
//!
//! A guest says when it has computed a gradient, not when it begins one, and one that it is at when its share becomes none it still computes. So what the host says
//! meanwhile is forgotten once that is done, and no rest is over before.
//!
//! A host that runs a whole program says nothing of gradients, so nobody knows whether it is slowed down. On processors its guest has the lowest priority and gets what the host leaves; on
//! a device there is no priority, and it gets what a guest begins on.

use events_schema::ExecutorId;
use events_schema::control::{Gradients, Phase, Progress};

/// All of the time, in thousandths.
pub const SHARE_ALL: u16 = 1_000;
/// What a guest begins on.
pub const SHARE_FIRST: u16 = 100;
/// What it gets more at a time: it has all after ten steps, which is some ten seconds.
pub const SHARE_STEP: u16 = 100;
/// Below that it rests instead: a share so small that no host would notice another one.
pub const SHARE_MIN: u16 = 50;
/// A gradient of the host may take so much longer than usual, in thousandths: what gradients of a machine differ by anyhow, from one half second to the next.
pub const SLOWER_MAX_MILLI: u64 = 1_100;
/// Words of the host in a row that have to be good before there is a step more.
pub const STEADY_WORDS: u32 = 2;
/// Words of the host from which it is known what is usual.
pub const USUAL_WORDS: u32 = 3;
/// How long a guest rests that slowed its host down on the smallest share, at the least.
pub const REST_MS: u64 = 10_000;
/// What is usual follows what is seen by one part in so many: gradients become faster and slower with what else a job does.
const USUAL_PARTS: u64 = 4;

/// What is known of a slot and its guest.
#[derive(Debug, Clone, Default)]
pub(crate) struct Sharing {
    /// Whether the slot is a device.
    is_device: bool,
    host: Option<Host>,
    guest: Option<Guest>,
}

#[derive(Debug, Clone)]
struct Host {
    executor: ExecutorId,
    /// All that it had computed when it last spoke.
    said: Gradients,
    /// What a gradient takes it where no guest computes, in microseconds, and of how many words that follows.
    usual_us: u64,
    words: u32,
    /// Whether its next word is also of a time in which one computed.
    is_mixed: bool,
}

#[derive(Debug, Clone, Copy, Default)]
struct Guest {
    share: u16,
    /// Words of the host since the last step, all of them good.
    steady: u32,
    rests_until: Option<u64>,
    /// Gradients that it had computed when it last spoke.
    said: u64,
    /// Whether it has computed a gradient since its share changed.
    has_computed: bool,
}

impl Sharing {
    /// Of a slot with nobody on it.
    pub fn new(is_device: bool) -> Self {
        Self { is_device, ..Self::default() }
    }

    /// An executor begins on the guest slot; what share it has.
    pub fn guest_begins(&mut self) -> u16 {
        let share = match &self.host {
            None => SHARE_ALL,
            Some(host) if host.words >= USUAL_WORDS => SHARE_FIRST,
            // First it has to be known what is usual.
            Some(_) => 0,
        };
        self.guest = Some(Guest { share, ..Guest::default() });
        share
    }

    /// It has ended.
    pub fn guest_ends(&mut self) {
        self.guest = None;
    }

    /// An executor begins on the slot; the guest's share, if it changes.
    pub fn host_begins(&mut self, executor: &ExecutorId) -> Option<u16> {
        let said = Gradients::default();
        self.host = Some(Host { executor: executor.clone(), said, usual_us: 0, words: 0, is_mixed: false });
        self.give(0)
    }

    /// It has ended; the guest's share, if it changes.
    pub fn host_ends(&mut self) -> Option<u16> {
        self.host = None;
        self.give(SHARE_ALL)
    }

    /// The guest says what it is at.
    pub fn guest_said(&mut self, progress: &Progress) {
        let (Some(guest), Some(said)) = (&mut self.guest, progress.gradients) else { return };
        if said.count <= guest.said {
            return;
        }
        (guest.said, guest.has_computed) = (said.count, true);
        if let (0, Some(host)) = (guest.share, &mut self.host) {
            (host.words, host.is_mixed) = (0, true);
        }
    }

    /// The host says what it is at; the guest's share, if it changes.
    pub fn host_said(&mut self, now: u64, executor: &ExecutorId, progress: &Progress) -> Option<u16> {
        let host = self.host.as_mut().filter(|host| host.executor == *executor)?;
        let Some(said) = progress.gradients else {
            // Who computes and says nothing of gradients computes none.
            let unseen = if self.is_device { SHARE_FIRST } else { SHARE_ALL };
            return matches!(progress.phase, Phase::Computing(_)).then(|| self.give(unseen)).flatten();
        };
        let count = said.count.saturating_sub(host.said.count);
        // Time in which it waited for its data is none that anybody slowed down.
        let computing_us = |of: Gradients| of.took_us.saturating_sub(of.data_us.unwrap_or(0));
        let took_us = computing_us(said).saturating_sub(computing_us(host.said));
        host.said = said;
        let is_alone = self.guest.is_none_or(|guest| guest.share == 0);
        if count == 0 {
            return None;
        }
        let one_us = took_us / count;
        let is_mixed = std::mem::take(&mut host.is_mixed);
        if is_alone && !is_mixed {
            host.usual_us = match host.words {
                0 => one_us,
                _ => (host.usual_us * (USUAL_PARTS - 1) + one_us) / USUAL_PARTS,
            };
            host.words = host.words.saturating_add(1);
        }
        let (usual_us, is_known) = (host.usual_us, host.words >= USUAL_WORDS);
        let guest = self.guest.as_mut()?;
        if guest.share == 0 {
            let has_rested = guest.has_computed && guest.rests_until.is_none_or(|until| until <= now);
            return (is_known && has_rested).then(|| self.give(SHARE_FIRST)).flatten();
        }
        if one_us * 1_000 > usual_us * SLOWER_MAX_MILLI {
            let half = guest.share / 2;
            if half >= SHARE_MIN {
                return self.give(half);
            }
            guest.rests_until = Some(now.saturating_add(REST_MS));
            return self.give(0);
        }
        guest.steady = guest.steady.saturating_add(1);
        if guest.steady < STEADY_WORDS || !guest.has_computed {
            return None;
        }
        let more = guest.share.saturating_add(SHARE_STEP).min(SHARE_ALL);
        self.give(more)
    }

    /// The share from now on, if it is another one.
    fn give(&mut self, share: u16) -> Option<u16> {
        let guest = self.guest.as_mut()?;
        (guest.steady, guest.has_computed) = (0, false);
        let is_new = guest.share != share;
        guest.share = share;
        is_new.then_some(share)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use events_schema::control::{Phase, WaitsFor};
    use events_schema::{Generation, Rank, Step};
    use proptest::prelude::*;

    struct Story {
        sharing: Sharing,
        host: ExecutorId,
        said: Gradients,
        /// Gradients of the guest, and whether it is at one.
        guest: u64,
        is_at_one: bool,
        share: u16,
        now: u64,
    }

    fn progress(gradients: Gradients) -> Progress {
        Progress {
            generation: Generation(1),
            revision: 0,
            step: Step(1),
            phase: Phase::Computing(Rank(0)),
            units_done: 0,
            bytes_done: 0,
            waits_for: WaitsFor::Nothing,
            processor_ms: 0,
            gradients: Some(gradients),
            busy_percent: None,
        }
    }

    impl Story {
        fn new() -> Self {
            let host: ExecutorId = "job-host/e0".parse().unwrap();
            let mut sharing = Sharing::default();
            sharing.host_begins(&host);
            Self { sharing, host, said: Gradients::default(), guest: 0, is_at_one: false, share: 0, now: 0 }
        }

        /// The first gradient it computes at once, whatever its share.
        fn guest_begins(&mut self) -> u16 {
            (self.share, self.is_at_one) = (self.sharing.guest_begins(), true);
            self.share
        }

        /// It is done with what it was at, and goes on if it may.
        fn guest_computes(&mut self) {
            (self.guest, self.is_at_one) = (self.guest + 1, self.share > 0);
            self.sharing.guest_said(&progress(Gradients { count: self.guest, ..Gradients::default() }));
        }

        /// Half a second in which gradients of the host took so long, and as many as there is time for.
        fn host_computes(&mut self, one_us: u64) -> Option<u16> {
            let count = 500_000 / one_us;
            (self.said.count, self.said.took_us, self.now) =
                (self.said.count + count, self.said.took_us + count * one_us, self.now + 500);
            let share = self.sharing.host_said(self.now, &self.host, &progress(self.said));
            self.share = share.unwrap_or(self.share);
            self.is_at_one |= self.share > 0;
            share
        }

        /// The same with a guest whose gradients take less.
        fn half_second(&mut self, one_us: u64) -> Option<u16> {
            if self.is_at_one {
                self.guest_computes();
            }
            self.host_computes(one_us)
        }

        fn half_seconds(&mut self, times: std::ops::Range<u32>, one_us: u64) {
            for _ in times {
                let _ = self.half_second(one_us);
            }
        }
    }

    #[test]
    fn a_guest_gets_more_step_by_step_while_its_host_is_as_fast_as_alone() {
        let mut story = Story::new();
        assert_eq!(story.guest_begins(), 0, "nobody knows yet what is usual");
        let shares: Vec<u16> = (0..24).filter_map(|_| story.half_second(10_000)).collect();
        assert_eq!(shares, [100, 200, 300, 400, 500, 600, 700, 800, 900, 1_000]);
        assert_eq!(story.half_second(10_900), None, "what is usual within a tenth");
    }

    #[test]
    fn it_is_cut_at_once_when_its_host_is_slower_and_rests_where_nothing_fits() {
        let mut story = Story::new();
        story.half_seconds(0..3, 10_000);
        assert_eq!(story.guest_begins(), SHARE_FIRST);
        let _ = (story.half_second(10_000), story.half_second(10_000));
        assert_eq!(story.half_second(11_200), Some(100));
        assert_eq!(story.half_second(11_200), Some(50));
        assert_eq!(story.half_second(11_200), Some(0));
        let again = (1..).find(|_| story.half_second(10_000).is_some()).unwrap();
        assert_eq!(again * 500, REST_MS, "it is tried again");
    }

    #[test]
    fn a_host_that_became_slower_by_itself_is_found_out_while_its_guest_rests() {
        let mut story = Story::new();
        story.guest_begins();
        story.half_seconds(0..6, 10_000);
        let shares: Vec<u16> = (0..60).filter_map(|_| story.half_second(20_000)).collect();
        assert!(shares.contains(&0) && shares.last() == Some(&SHARE_ALL), "{shares:?}");
    }

    /// Its gradient takes longer than a rest, and its host is slow for as long as that.
    #[test]
    fn what_a_host_says_while_its_guest_is_still_at_a_gradient_is_not_what_is_usual() {
        let mut story = Story::new();
        story.half_seconds(0..3, 10_000);
        assert_eq!(story.guest_begins(), SHARE_FIRST);
        let shares: Vec<u16> = (0..40).filter_map(|_| story.host_computes(20_000)).collect();
        assert_eq!(shares, [50, 0], "nothing more before it is done");
        story.guest_computes();
        let again = (1..).find(|_| story.host_computes(10_000).is_some()).unwrap();
        assert_eq!((again, story.share), (USUAL_WORDS + 1, SHARE_FIRST), "what is usual is learned anew");
        assert_eq!(story.host_computes(12_000), Some(50), "and is what it was");
    }

    #[test]
    fn who_rests_between_long_gradients_gets_no_more_for_it() {
        let mut story = Story::new();
        story.half_seconds(0..3, 10_000);
        story.guest_begins();
        assert!((0..40).all(|_| story.host_computes(10_000).is_none()));
        story.guest_computes();
        assert_eq!(story.host_computes(10_000), Some(200));
    }

    #[test]
    fn who_has_no_host_has_all_of_the_time() {
        let mut story = Story::new();
        story.guest_begins();
        assert_eq!(story.sharing.host_ends(), Some(SHARE_ALL));
        assert_eq!(
            story.sharing.host_begins(&"job-other/e0".parse().unwrap()),
            Some(0),
            "and the next one is learned anew"
        );
        assert_eq!(story.half_second(10_000), None, "a word of who is there no more");
    }

    /// It had none of the time for ever, and a gradient every twenty seconds.
    #[test]
    fn beside_a_whole_program_a_guest_has_what_the_priority_gives_and_on_a_device_a_small_share() {
        for (is_device, share) in [(false, SHARE_ALL), (true, SHARE_FIRST)] {
            let (mut sharing, host) = (Sharing::new(is_device), "job-host/e0".parse().unwrap());
            sharing.host_begins(&host);
            assert_eq!(sharing.guest_begins(), 0);
            let program = |phase| Progress { gradients: None, phase, ..progress(Gradients::default()) };
            assert_eq!(sharing.host_said(500, &host, &program(Phase::Loading)), None, "it does not compute yet");
            assert_eq!(sharing.host_said(1_000, &host, &program(Phase::Computing(Rank(0)))), Some(share));
            assert_eq!(sharing.host_said(1_500, &host, &program(Phase::Computing(Rank(0)))), None);
        }
    }

    proptest! {
        #[test]
        fn a_host_is_never_slower_than_usual_for_long(alone_us in 1_000u64..100_000, hurts_milli in 0u64..3_000, noise in proptest::collection::vec(0u64..40, 200)) {
            let mut story = Story::new();
            story.half_seconds(0..4, alone_us);
            story.guest_begins();
            let mut slow = 0;
            for noise in noise {
                let share = u64::from(story.share);
                let one_us = alone_us * (1_000_000 + noise * 1_000 + hurts_milli * share) / 1_000_000;
                slow = if one_us * 1_000 > alone_us * 1_200 { slow + 1 } else { 0 };
                prop_assert!(slow < 6, "{slow} half seconds of a fifth more, on {share}");
                story.half_second(one_us);
            }
        }
    }
}
