//! How much of a slot its host uses, over ten seconds: of the processors that the slot has, or of its device. After AntMan (OSDI 2020, §3.3), whose global scheduler looks for GPUs with
//! "a utilization of less than M in the past 10 seconds".
//!
//! The host's use alone counts. Of processors it says itself how much time it has used; of a device only the use of all together is known, so what is read of one while a guest is
//! on it is left out. A host is not known before it has trained for that long: who builds its model or waits for its replica has not shown what it uses.

use events_schema::ExecutorId;
use events_schema::control::{Phase, Progress};

/// What is used is looked at over so long.
pub const LOAD_WINDOW_MS: u64 = 10_000;
/// Readings of a device of which a window has at least so many: it is read once a second, and some of that may fail.
pub const READINGS_MIN: u64 = 5;

/// What is known of the host of a slot.
#[derive(Debug, Clone, Default)]
pub(crate) struct Load {
    host: Option<Host>,
}

#[derive(Debug, Clone)]
struct Host {
    executor: ExecutorId,
    window: Option<Window>,
    /// What the last whole window came to.
    percent: Option<u8>,
}

/// Since when, what the processors had done for it by then, and what was read of its device since.
#[derive(Debug, Clone, Copy)]
struct Window {
    since_ms: u64,
    processor_ms: u64,
    read_percent: u64,
    readings: u64,
}

impl Load {
    /// An executor begins on the slot: of those before it nothing says anything about it.
    pub fn host_begins(&mut self, executor: &ExecutorId) {
        self.host = Some(Host { executor: executor.clone(), window: None, percent: None });
    }

    /// The device of the slot was read, while no guest was on it.
    pub fn device_read(&mut self, executor: &ExecutorId, percent: u8) {
        let host = self.host.as_mut().filter(|host| host.executor == *executor);
        if let Some(window) = host.and_then(|host| host.window.as_mut()) {
            window.read_percent += u64::from(percent);
            window.readings += 1;
        }
    }

    /// The host says what it is at; how much of its slot it uses, once that is known. The slot has so many thousandths of a processor; none, it is a device.
    pub fn host_said(
        &mut self,
        now_ms: u64,
        executor: &ExecutorId,
        progress: &Progress,
        processors_milli: Option<u32>,
    ) -> Option<u8> {
        let host = self.host.as_mut().filter(|host| host.executor == *executor)?;
        if !trains(progress.phase) {
            host.window = None;
            return host.percent;
        }
        let begun = Window { since_ms: now_ms, processor_ms: progress.processor_ms, read_percent: 0, readings: 0 };
        let window = *host.window.get_or_insert(begun);
        let long_ms = now_ms.saturating_sub(window.since_ms);
        if long_ms < LOAD_WINDOW_MS {
            return host.percent;
        }
        host.window = Some(begun);
        let of_device = (window.readings >= READINGS_MIN).then(|| window.read_percent / window.readings);
        // Who began its program anew, which used time of its own, has used less than before.
        let used_ms = progress.processor_ms.saturating_sub(window.processor_ms);
        let of_processors = |milli: u32| used_ms * 100_000 / (long_ms * u64::from(milli.max(1)));
        let found = processors_milli.map_or(of_device, |milli| Some(of_processors(milli)));
        host.percent = found.map(|percent| percent.min(100) as u8).or(host.percent);
        host.percent
    }
}

/// Whether what an executor uses in a phase is what it trains with.
fn trains(phase: Phase) -> bool {
    match phase {
        Phase::Building | Phase::Idle | Phase::Loading | Phase::Linking | Phase::Joining | Phase::Copying => false,
        Phase::Still | Phase::Broken => false,
        Phase::Computing(_) | Phase::Reducing | Phase::Updating | Phase::Evaluating(_) | Phase::Saving => true,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use events_schema::control::WaitsFor;
    use events_schema::{Generation, Rank, Step};

    const HALF_A_PROCESSOR: Option<u32> = Some(500);

    struct Story {
        load: Load,
        host: ExecutorId,
        now_ms: u64,
        processor_ms: u64,
    }

    impl Story {
        fn new() -> Self {
            let (mut load, host) = (Load::default(), "job-host/e0".parse().unwrap());
            load.host_begins(&host);
            Self { load, host, now_ms: 7, processor_ms: 3_000 }
        }

        fn says(&mut self, phase: Phase, of: Option<u32>) -> Option<u8> {
            let progress = Progress {
                generation: Generation(1),
                revision: 0,
                step: Step(1),
                phase,
                units_done: 0,
                bytes_done: 0,
                waits_for: WaitsFor::Nothing,
                processor_ms: self.processor_ms,
                gradients: None,
                busy_percent: None,
            };
            self.load.host_said(self.now_ms, &self.host, &progress, of)
        }

        /// Half seconds in each of which it uses so much processor time; what is known after the last.
        fn half_seconds(&mut self, times: u32, used_ms: u64, of: Option<u32>) -> Option<u8> {
            let mut known = None;
            for _ in 0..times {
                (self.now_ms, self.processor_ms) = (self.now_ms + 500, self.processor_ms + used_ms);
                known = self.says(Phase::Computing(Rank(0)), of);
            }
            known
        }
    }

    #[test]
    fn what_a_host_uses_is_its_part_of_what_its_slot_has_over_ten_seconds() {
        let mut story = Story::new();
        assert_eq!(story.half_seconds(20, 100, HALF_A_PROCESSOR), None, "not before it was seen for so long");
        assert_eq!(story.half_seconds(1, 100, HALF_A_PROCESSOR), Some(40), "100 of 250 ms");
        assert_eq!(story.half_seconds(19, 240, HALF_A_PROCESSOR), Some(40), "until the next ten seconds are over");
        assert_eq!(story.half_seconds(1, 240, HALF_A_PROCESSOR), Some(96));
        assert_eq!(
            story.half_seconds(20, 400, HALF_A_PROCESSOR),
            Some(100),
            "it has what others leave, and that counts no more"
        );
    }

    #[test]
    fn who_does_not_train_yet_has_not_shown_what_it_uses() {
        let mut story = Story::new();
        for _ in 0..60 {
            story.now_ms += 500;
            assert_eq!(story.says(Phase::Loading, HALF_A_PROCESSOR), None);
        }
        assert_eq!(story.half_seconds(20, 250, HALF_A_PROCESSOR), None);
        assert_eq!(story.half_seconds(1, 250, HALF_A_PROCESSOR), Some(100));
        let other = "job-host/e1".parse().unwrap();
        story.load.host_begins(&other);
        assert_eq!(story.half_seconds(60, 250, HALF_A_PROCESSOR), None, "a word of who is there no more");
    }

    #[test]
    fn of_a_device_counts_what_was_read_of_it_and_no_processor() {
        let mut story = Story::new();
        story.half_seconds(1, 500, None);
        for percent in [90, 70, 90, 70, 90, 70] {
            story.load.device_read(&story.host.clone(), percent);
        }
        assert_eq!(story.half_seconds(20, 500, None), Some(80));
        story.load.device_read(&story.host.clone(), 3);
        assert_eq!(story.half_seconds(20, 500, None), Some(80), "one reading says nothing");
    }
}
