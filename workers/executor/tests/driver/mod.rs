//! Agent and controller of one job in a test: starts real executor processes, speaks their frames, proposes memberships, kills.
//! Decides nothing by itself; every test says what happens when.

mod images;
mod proxy;
mod silence;

use events_schema::control::{ExecutorStart, FromExecutor, Phase, Progress, ToExecutor};
use events_schema::dataset::DatasetInfo;
use events_schema::fact::{Entry, Member, Proposal};
use events_schema::job::JobSpec;
use events_schema::orders::{JobOrder, LinkKey, Telemetry};
use events_schema::report::{Outcome, Report};
use events_schema::stride::Stride;
use events_schema::tree::place;
use events_schema::{DatasetName, Digest, ExecutorId, Generation, JobId, ServerId, SlotId, Step, TimeMs, WriterToken};
use proxy::Proxy;
use silence::Silence;
use std::collections::BTreeMap;
use std::io::{Cursor, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};
use storage::dataset::{Location, Partition, TextOptions, Vocabulary, import_text, load_metadata, save_metadata};
use storage::keys::CheckpointName;
use workers_executor::control::{read_frame, write_frame};

/// Nothing in these tests takes this long; a test that waits longer has hung.
const WAIT_MAX: Duration = Duration::from_secs(120);

/// Of [`Driver::digits_in_files`].
const FILES: u64 = 4;

pub enum Heard {
    Said(FromExecutor),
    Ended,
}

struct Process {
    child: Child,
    input: ChildStdin,
    address: Option<String>,
}

pub struct Driver {
    pub job: JobId,
    pub spec: JobSpec,
    pub store_url: String,
    folder: tempfile::TempDir,
    dataset: DatasetInfo,
    evaluation: Option<DatasetInfo>,
    processes: BTreeMap<u32, Process>,
    pub exits: BTreeMap<u32, ExitStatus>,
    events: Receiver<(u32, Heard)>,
    heard: Sender<(u32, Heard)>,
    pub reports: Vec<(u32, Report)>,
    pub telemetry: Option<Telemetry>,
    /// What each executor last said it is at.
    pub progress: BTreeMap<u32, Progress>,
    /// How often executors are told that the job began anew.
    pub restarts: u32,
    proposal: Option<Proposal>,
    park: bool,
    next: u32,
    generation: u64,
}

fn class() -> Digest {
    static CLASS: OnceLock<Digest> = OnceLock::new();
    *CLASS.get_or_init(workers_engine::known_answer)
}

impl Driver {
    /// A job of the shipped digits.
    pub fn digits(spec: serde_json::Value) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let store_url = format!("file://{}", folder.path().display());
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let store = storage::open_store(&store_url).unwrap();
        let digits = runtime.block_on(storage::dataset::register_digits(&store)).unwrap();
        Self::with(spec, folder, digits.dataset, digits.test)
    }

    /// A job that trains on digits in four files of as many rows, read one after the other. It is evaluated on the same ones.
    pub fn digits_in_files(spec: serde_json::Value) -> Self {
        let mut driver = Self::digits(spec);
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let store = storage::open_store(&driver.store_url).unwrap();
        let info = driver.evaluation.take().unwrap();
        driver.dataset = runtime.block_on(async {
            let mut metadata = load_metadata(&store, &info).await.unwrap();
            let whole = metadata.partitions.remove(0);
            for number in 0..FILES {
                let key = format!("datasets/{}/file-{number}.parquet", info.name);
                std::fs::copy(driver.object(whole.location.as_str()), driver.object(&key)).unwrap();
                metadata.partitions.push(Partition { location: Location::Key(key), ..whole.clone() });
            }
            metadata.rows *= FILES;
            save_metadata(&store, info.name.clone(), &metadata).await.unwrap()
        });
        driver.evaluation = Some(driver.dataset.clone());
        driver
    }

    /// The store does not answer any more who asks for this object.
    pub fn silence(&self, key: &str) -> Silence {
        Silence::of(self.object(key))
    }

    /// Nor for these of the four files.
    pub fn silence_files(&self, numbers: &[u64]) -> Vec<Silence> {
        let silence = |number| self.silence(&format!("datasets/{}/file-{number}.parquet", self.dataset.name));
        numbers.iter().map(silence).collect()
    }

    /// A job of a made-up text, as bytes.
    pub fn text(spec: serde_json::Value) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let text: String = (0..3000).map(|i| format!("{i} times {i} is {}; ", i * i)).collect();
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let store = storage::open_store(&format!("file://{}", folder.path().display())).unwrap();
        let name = DatasetName::parse("text").unwrap();
        let options = TextOptions { vocabulary: Vocabulary::Bytes, length: 33, test_every: None };
        let imported = runtime.block_on(import_text(&store, &name, Cursor::new(text), &options)).unwrap();
        Self::with(spec, folder, imported.dataset, None)
    }

    /// A job of made-up images: so many, of so many bytes each.
    pub fn images(spec: serde_json::Value, count: u32, bytes: u32) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let store = storage::open_store(&format!("file://{}", folder.path().display())).unwrap();
        let imported = runtime.block_on(images::import(&store, count, bytes));
        Self::with(spec, folder, imported.dataset, None)
    }

    /// Bytes of the training data in the store.
    pub fn dataset_bytes(&self) -> u64 {
        let files = std::fs::read_dir(self.object(&format!("datasets/{}", self.dataset.name))).unwrap();
        files.map(|file| file.unwrap().metadata().unwrap().len()).sum()
    }

    /// Bytes that an executor has read out of files so far, by what the kernel counts. What comes over a socket is not among them.
    pub fn file_bytes_read(&self, number: u32) -> u64 {
        let counted = std::fs::read_to_string(format!("/proc/{}/io", self.processes[&number].child.id())).unwrap();
        counted.lines().find_map(|line| line.strip_prefix("rchar: ")).unwrap().parse().unwrap()
    }

    fn with(
        spec: serde_json::Value,
        folder: tempfile::TempDir,
        dataset: DatasetInfo,
        evaluation: Option<DatasetInfo>,
    ) -> Self {
        let (heard, events) = channel();
        Self {
            job: JobId::parse("job-test").unwrap(),
            spec: JobSpec::parse(&spec).unwrap(),
            store_url: format!("file://{}", folder.path().display()),
            folder,
            dataset,
            evaluation,
            processes: BTreeMap::new(),
            exits: BTreeMap::new(),
            events,
            heard,
            reports: Vec::new(),
            telemetry: None,
            progress: BTreeMap::new(),
            restarts: 0,
            proposal: None,
            park: false,
            next: 0,
            generation: 0,
        }
    }

    pub fn order(&self) -> JobOrder {
        JobOrder {
            proposal: self.proposal.clone(),
            park: self.park,
            restarts: self.restarts,
            writer: self.proposal.as_ref().map(|proposal| WriterToken([proposal.generation.0 as u8; 16])),
            ..JobOrder::alone(self.spec.clone(), Some(self.dataset.clone()), self.evaluation.clone())
        }
    }

    /// What one executor is told: the keys of its own links are in it.
    fn order_of(&self, number: u32) -> JobOrder {
        let members = self.proposal.iter().flat_map(|proposal| &proposal.members);
        let others = members.map(|member| member.executor.number).filter(|other| *other != number);
        let key = |other: u32| {
            let mut key = [9; 32];
            key[..4].copy_from_slice(&number.min(other).to_le_bytes());
            key[4..8].copy_from_slice(&number.max(other).to_le_bytes());
            key
        };
        JobOrder { link_keys: others.map(|peer| LinkKey { peer, key: key(peer) }).collect(), ..self.order() }
    }

    fn order_all(&mut self, numbers: &[u32]) {
        for &number in numbers {
            let order = ToExecutor::Order(Box::new(self.order_of(number)));
            self.tell(number, &order);
        }
    }

    pub fn plain(&self) -> workers_executor::PlainRun {
        workers_executor::train_plain(&self.job, &self.order(), &self.store_url, None).unwrap()
    }

    fn id(&self, number: u32) -> ExecutorId {
        ExecutorId { job: self.job.clone(), number }
    }

    /// Starts executors; they build in the background.
    pub fn spawn(&mut self, count: u32) -> Vec<u32> {
        (0..count).map(|_| self.spawn_of_class(class())).collect()
    }

    pub fn spawn_of_class(&mut self, class: Digest) -> u32 {
        let number = self.next;
        self.next += 1;
        let mut command = Command::new(env!("CARGO_BIN_EXE_executor-under-test"));
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut output = child.stdout.take().unwrap();
        let heard = self.heard.clone();
        std::thread::spawn(move || {
            while let Ok(Some(message)) = read_frame(&mut output) {
                let _ = heard.send((number, Heard::Said(message)));
            }
            let _ = heard.send((number, Heard::Ended));
        });
        let mut input = child.stdin.take().unwrap();
        let start = ExecutorStart {
            executor: self.id(number),
            slot: SlotId { server: ServerId::parse("test").unwrap(), index: number as u16 },
            store_url: self.store_url.clone(),
            class,
            listen_host: "127.0.0.1".to_owned(),
            order: JobOrder { proposal: None, ..self.order() },
            torch: None,
        };
        write_frame(&mut input, &ToExecutor::Start(Box::new(start))).unwrap();
        self.processes.insert(number, Process { child, input, address: None });
        number
    }

    /// Starts executors and waits until they are ready.
    pub fn ready(&mut self, count: u32) -> Vec<u32> {
        let numbers = self.spawn(count);
        let wanted = numbers.clone();
        self.until(|d| wanted.iter().all(|n| d.processes.get(n).is_none_or(|p| p.address.is_some())));
        numbers
    }

    /// Peers reach this executor through a proxy from the next proposal on.
    pub fn behind_proxy(&mut self, number: u32) -> Proxy {
        let address = &mut self.processes.get_mut(&number).unwrap().address;
        let proxy = Proxy::to(address.take().unwrap());
        *address = Some(proxy.address.clone());
        proxy
    }

    pub fn alive(&self) -> Vec<u32> {
        self.processes.keys().copied().collect()
    }

    fn tell(&mut self, number: u32, message: &ToExecutor) {
        if let Some(process) = self.processes.get_mut(&number) {
            // A dead executor's pipe is broken; its end is heard on its own.
            let _ = write_frame(&mut process.input, message);
        }
    }

    /// Proposes a membership to its members and to `also`.
    pub fn propose(&mut self, entry: Entry, members: &[u32], leader: u32, also: &[u32]) -> Generation {
        self.generation += 1;
        let shares = place(self.spec.workers.max, members.len() as u16);
        let address =
            |n: &u32| self.processes.get(n).and_then(|p| p.address.clone()).unwrap_or_else(|| "127.0.0.1:1".to_owned());
        let seats = members
            .iter()
            .zip(shares)
            .map(|(n, ranks)| Member { executor: self.id(*n), address: address(n), ranks })
            .collect();
        let generation = Generation(self.generation);
        self.proposal = Some(Proposal {
            generation,
            entry,
            members: seats,
            leader: self.id(leader),
            deadline: TimeMs(0),
            stride: Stride::ONE,
        });
        self.order_all(&[members, also].concat());
        generation
    }

    pub fn park(&mut self) {
        self.park = true;
        self.order_all(&self.alive());
    }

    pub fn unpark(&mut self) {
        self.park = false;
    }

    pub fn leave(&mut self, number: u32) {
        self.leave_within(number, 60_000);
    }

    pub fn leave_within(&mut self, number: u32, within_ms: u64) {
        self.tell(number, &ToExecutor::Leave { within_ms });
    }

    pub fn kill(&mut self, number: u32) {
        if let Some(process) = self.processes.get_mut(&number) {
            process.child.kill().unwrap();
        }
    }

    /// Sends a signal, by its name.
    pub fn signal(&mut self, number: u32, signal: &str) {
        let pid = self.processes[&number].child.id().to_string();
        assert!(Command::new("kill").args(["-s", signal, &pid]).status().unwrap().success());
    }

    /// Whether the others have let go of a member that left, or are done. Otherwise it left before it was in lock-step with them, or when the job stood still
    /// at its end, and they need a proposal without it, as the controller makes one.
    pub fn goes_on_without(&mut self, left: u32, others: &[u32]) -> bool {
        let departed = |d: &Self| {
            let of =
                |report: &Report| matches!(report, Report::MemberDeparted { executor, .. } if executor.number == left);
            d.outcome().is_some() || d.reports.iter().any(|(_, report)| of(report))
        };
        let missed = |d: &Self| {
            let it = |peer: &ExecutorId| peer.number == left;
            let of = |report: &Report| matches!(report, Report::PeersMissing { peers, .. } if peers.iter().any(it));
            let stands = |other: &u32| d.progress.get(other).is_some_and(|progress| progress.phase == Phase::Still);
            d.reports.iter().any(|(_, report)| of(report)) || others.iter().all(stands)
        };
        self.until(|d| departed(d) || missed(d));
        departed(self)
    }

    pub fn stop_all(&mut self) {
        self.alive().into_iter().for_each(|n| self.tell(n, &ToExecutor::Stop));
        self.until(|d| d.processes.is_empty());
    }

    /// Listens until `done`, and fails the test if that takes too long.
    pub fn until(&mut self, mut done: impl FnMut(&Self) -> bool) {
        // Words of life go on while a job hangs, so the time is that of the whole wait.
        let until = Instant::now() + WAIT_MAX;
        while !done(self) {
            let heard = self.events.recv_timeout(until.saturating_duration_since(Instant::now()));
            let (number, heard) =
                heard.unwrap_or_else(|_| panic!("hung; {:#?}; reports so far: {:#?}", self.progress, self.reports));
            match heard {
                Heard::Said(FromExecutor::Report(report)) => {
                    if let (Report::ExecutorReady { address, .. }, Some(process)) =
                        (&report, self.processes.get_mut(&number))
                    {
                        process.address = Some(address.clone());
                    }
                    if let Report::JobBroken { reason, .. } = &report {
                        eprintln!("job broken: {reason}");
                    }
                    self.reports.push((number, report));
                }
                Heard::Said(FromExecutor::Telemetry(telemetry)) => self.telemetry = Some(telemetry),
                Heard::Said(FromExecutor::Progress(progress)) => drop(self.progress.insert(number, progress)),
                Heard::Said(FromExecutor::Alive | FromExecutor::Span(_) | FromExecutor::LastWords { .. }) => {}
                Heard::Ended => {
                    if let Some(mut process) = self.processes.remove(&number) {
                        let status = process.child.wait().unwrap();
                        self.exits.insert(number, status);
                    }
                }
            }
        }
    }

    pub fn until_gone(&mut self, number: u32) -> ExitStatus {
        self.until(|d| d.exits.contains_key(&number));
        self.exits[&number]
    }

    /// Steps done, as the leader last said.
    pub fn step(&self) -> Step {
        self.telemetry.as_ref().map_or(Step(0), |t| t.step)
    }

    pub fn until_step(&mut self, step: u64) {
        self.until(|d| d.step().0 >= step || d.outcome().is_some());
    }

    pub fn until_active(&mut self, generation: Generation) -> (Step, u64) {
        self.until(|d| d.active(generation).is_some() || d.outcome().is_some());
        self.active(generation).expect("the job was over before the change; make it longer")
    }

    pub fn active(&self, generation: Generation) -> Option<(Step, u64)> {
        self.reports.iter().find_map(|(_, report)| match report {
            Report::GenerationActive { generation: g, step, pause_us, .. } if *g == generation => {
                Some((*step, *pause_us))
            }
            _ => None,
        })
    }

    pub fn outcome(&self) -> Option<&Outcome> {
        self.reports.iter().find_map(|(_, report)| {
            if let Report::JobCompleted { outcome, .. } = report { Some(outcome) } else { None }
        })
    }

    pub fn until_completed(&mut self) -> Outcome {
        self.until(|d| d.outcome().is_some());
        self.outcome().unwrap().clone()
    }

    /// The newest generation reported active.
    pub fn active_generation(&mut self) -> Generation {
        let newest = |d: &Self| {
            d.reports
                .iter()
                .filter_map(
                    |(_, r)| if let Report::GenerationActive { generation, .. } = r { Some(*generation) } else { None },
                )
                .max()
        };
        self.until(|d| newest(d).is_some());
        newest(self).unwrap()
    }

    /// Closes an executor's standard input, as the end of its agent would.
    pub fn close(&mut self, number: u32) {
        if let Some(process) = self.processes.remove(&number) {
            let Process { mut child, input, .. } = process;
            drop(input);
            self.exits.insert(number, child.wait().unwrap());
        }
    }

    /// The file of an object.
    pub fn object(&self, key: &str) -> PathBuf {
        self.folder.path().join(key)
    }

    /// Removes the training data; gives the object's key.
    pub fn remove_dataset_part(&self) -> String {
        let folder = self.object(&format!("datasets/{}", self.dataset.name));
        let part = std::fs::read_dir(folder)
            .unwrap()
            .map(|e| e.unwrap().path())
            .find(|p| p.extension().is_some_and(|e| e == "parquet"))
            .unwrap();
        std::fs::remove_file(&part).unwrap();
        part.file_name().unwrap().to_str().unwrap().to_owned()
    }

    /// Manifests written so far, with their steps.
    pub fn checkpoints(&self) -> Vec<(Step, String)> {
        let written = |report: &Report| match report {
            Report::CheckpointSaved { job, step, written_in, writer, .. } => {
                let (generation, writer) = (*written_in, Some(*writer));
                let name = CheckpointName { job: job.clone(), generation, step: *step, writer };
                Some((*step, name.manifest()))
            }
            _ => None,
        };
        self.reports.iter().filter_map(|(_, r)| written(r)).collect()
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        for process in self.processes.values_mut() {
            let _ = process.input.flush();
            let _ = process.child.kill();
            let _ = process.child.wait();
        }
    }
}
