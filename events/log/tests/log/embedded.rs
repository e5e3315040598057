//! The embedded log where only it can fail: kill -9 under load, a second process, a full file system, a file of something else.
//!
//! Children are this very test binary, started again for one of its ignored tests with the file's path in the environment.

use crate::whole::everything;
use events_log::{Advice, AppendError, EmbeddedLog, EmbeddedOptions, EventLog, OpenError, ReadError, Stream};
use events_schema::{Cell, Offset};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

const CELL: Cell = Cell(0);
const PATH_VARIABLE: &str = "EBB_TEST_LOG_FILE";

/// Starts this binary again to run one ignored test as a process of its own.
fn child(test: &str, path: &Path) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--ignored", "--nocapture", "--test-threads", "1"])
        .env(PATH_VARIABLE, path)
        .stdout(Stdio::piped())
        .stdin(Stdio::null())
        .spawn()
        .unwrap()
}

/// Appends without end from 32 tasks and prints `ack OFFSET CONTENT` for each acknowledgement.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "run as a child process by the tests below"]
async fn child_appends_until_killed() {
    let path = std::env::var_os(PATH_VARIABLE).expect("run by another test");
    let log: Arc<dyn EventLog> = Arc::new(EmbeddedLog::open(path).unwrap());
    let round = log.end(Stream::Commands, CELL).await.unwrap();
    let writers: Vec<_> = (0..32)
        .map(|writer| {
            let log = Arc::clone(&log);
            tokio::spawn(async move {
                for i in 0u64.. {
                    let content = format!("{round}-{writer}-{i}-{}", "x".repeat((i % 700) as usize));
                    let offset = log.append(Stream::Commands, CELL, content.clone().into_bytes()).await.unwrap();
                    println!("ack {offset} {content}");
                }
            })
        })
        .collect();
    for writer in writers {
        writer.await.unwrap();
    }
}

/// Every record acknowledged before a kill -9 is there afterwards, once, where it was acknowledged; round after round.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_acknowledged_is_lost_by_kill_9() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("log.redb");
    let mut acknowledged: BTreeMap<Offset, Vec<u8>> = BTreeMap::new();
    for round in 0..6u32 {
        let mut child = child("embedded::child_appends_until_killed", &path);
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut seen = 0;
        // Killed at different moments: after some acknowledgements, in the middle of commits.
        let wanted = 40 + 331 * round;
        let mut take = |line: &str| {
            // The last line of a killed process may be cut: it has no newline and was not finished.
            let Some((_, rest)) = line.split_once("ack ") else { return };
            let Some((offset, content)) = rest.split_once(' ') else { return };
            acknowledged.insert(Offset(offset.parse().unwrap()), content.as_bytes().to_vec());
        };
        while seen < wanted {
            let line = lines.next().expect("the child ended by itself").unwrap();
            seen += u32::from(line.contains("ack "));
            take(&line);
        }
        child.kill().unwrap();
        assert!(!child.wait().unwrap().success());
        let mut rest: Vec<String> = lines.map_while(Result::ok).collect();
        rest.pop();
        rest.iter().for_each(|line| take(line));

        let log = EmbeddedLog::open(&path).unwrap();
        let found = everything(&log, Stream::Commands).await;
        let end = log.end(Stream::Commands, CELL).await.unwrap();
        assert_eq!(
            found.keys().copied().collect::<Vec<_>>(),
            (0..end.0).map(Offset).collect::<Vec<_>>(),
            "offsets have gaps"
        );
        for (offset, content) in &acknowledged {
            assert_eq!(found.get(offset), Some(content), "round {round}, offset {offset}");
        }
        let contents: std::collections::BTreeSet<&Vec<u8>> = found.values().collect();
        assert_eq!(contents.len(), found.len(), "a record stands twice");
    }
    assert!(acknowledged.len() > 1_000);
}

/// Opens the file and says what came of it.
#[test]
#[ignore = "run as a child process by the tests below"]
fn child_opens() {
    let path = std::env::var_os(PATH_VARIABLE).expect("run by another test");
    match EmbeddedLog::open(path) {
        Ok(_) => println!("answer: opened"),
        Err(error) => println!("answer: {error}"),
    }
}

fn answer_of_another_process(path: &Path) -> String {
    let output = child("embedded::child_opens", path).wait_with_output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().find_map(|line| line.split_once("answer: ").map(|(_, answer)| answer.to_owned())).unwrap()
}

#[tokio::test]
async fn a_second_process_is_refused_by_name_until_the_first_is_gone() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("log.redb");
    let log = EmbeddedLog::open(&path).unwrap();
    log.append(Stream::Events, CELL, b"mine".to_vec()).await.unwrap();
    let refusal = answer_of_another_process(&path);
    assert!(refusal.contains(&path.display().to_string()) && refusal.contains("held by another process"), "{refusal}");
    assert!(matches!(EmbeddedLog::open(&path), Err(OpenError::Held { .. })));
    drop(log);
    assert_eq!(answer_of_another_process(&path), "opened");
}

#[tokio::test]
async fn everything_is_there_after_a_clean_end() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("deep/er/log.redb");
    {
        let log = EmbeddedLog::open(&path).unwrap();
        for i in 0..100u32 {
            log.append(Stream::Events, CELL, i.to_le_bytes().to_vec()).await.unwrap();
            log.append(Stream::Demand, Cell(7), vec![1]).await.unwrap();
        }
        log.trim(Stream::Events, CELL, Offset(30)).await.unwrap();
    }
    let log = EmbeddedLog::open(&path).unwrap();
    assert_eq!(log.end(Stream::Events, CELL).await.unwrap(), Offset(100));
    assert_eq!(log.end(Stream::Demand, Cell(7)).await.unwrap(), Offset(100));
    assert!(matches!(
        log.read(Stream::Events, CELL, Offset(29), 10).await,
        Err(ReadError::Trimmed { first: Offset(30), .. })
    ));
    let read = log.read(Stream::Events, CELL, Offset(30), 1 << 20).await.unwrap();
    assert_eq!((read.len(), read[69].offset), (70, Offset(99)));
    assert_eq!(log.append(Stream::Events, CELL, vec![]).await.unwrap(), Offset(100));
}

#[tokio::test]
async fn a_file_system_nearly_full_refuses_before_writing_and_recovers() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("log.redb");
    drop(EmbeddedLog::open(&path).unwrap());
    let log = EmbeddedLog::open_with(&path, EmbeddedOptions { reserve_bytes: u64::MAX / 2 }).unwrap();
    let error = log.append(Stream::Events, CELL, b"x".to_vec()).await.unwrap_err();
    assert!(matches!(error, AppendError::Full { .. }) && error.advice() == Advice::Retry, "{error}");
    assert!(
        error.to_string().contains(&path.display().to_string()) && error.to_string().contains("free some space"),
        "{error}"
    );
    assert_eq!(log.end(Stream::Events, CELL).await.unwrap(), Offset(0));
    // Removing is allowed: it is how space comes back.
    log.trim(Stream::Events, CELL, Offset(0)).await.unwrap();
    drop(log);
    let log = EmbeddedLog::open(&path).unwrap();
    assert_eq!(log.append(Stream::Events, CELL, b"x".to_vec()).await.unwrap(), Offset(0));
}

/// A file that takes only so many bytes, as a file system that is really full does.
#[derive(Debug)]
struct SmallDisk {
    file: redb::backends::FileBackend,
    written: Arc<AtomicU64>,
    bytes_max: u64,
}

impl redb::StorageBackend for SmallDisk {
    fn len(&self) -> Result<u64, std::io::Error> {
        self.file.len()
    }
    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), std::io::Error> {
        self.file.read(offset, out)
    }
    fn set_len(&self, len: u64) -> Result<(), std::io::Error> {
        self.file.set_len(len)
    }
    fn sync_data(&self) -> Result<(), std::io::Error> {
        self.file.sync_data()
    }
    fn write(&self, offset: u64, data: &[u8]) -> Result<(), std::io::Error> {
        if self.written.fetch_add(data.len() as u64, Ordering::Relaxed) + data.len() as u64 > self.bytes_max {
            return Err(std::io::Error::from(std::io::ErrorKind::StorageFull));
        }
        self.file.write(offset, data)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disk_that_is_full_loses_nothing_acknowledged() {
    for bytes_max in [3_000_000u64, 5_000_000, 9_000_001] {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log.redb");
        drop(EmbeddedLog::open(&path).unwrap());
        let file = std::fs::OpenOptions::new().read(true).write(true).open(&path).unwrap();
        let disk =
            SmallDisk { file: redb::backends::FileBackend::new(file).unwrap(), written: Arc::default(), bytes_max };
        let mut acknowledged = 0;
        {
            let log = EmbeddedLog::open_on(&path, disk).unwrap();
            let error = loop {
                match log.append(Stream::Events, CELL, vec![7; 50_000]).await {
                    Ok(offset) => acknowledged = offset.0 + 1,
                    Err(error) => break error,
                }
            };
            let mut shown = format!("{error}");
            let mut source = std::error::Error::source(&error);
            while let Some(cause) = source {
                shown = format!("{shown}: {cause}");
                source = cause.source();
            }
            assert!(matches!(error, AppendError::Unknown(_) | AppendError::Stopped(_)), "{shown}");
            assert!(shown.to_lowercase().contains("no storage space"), "{shown}");
            // What was acknowledged is still read at the end, and nothing more is promised.
            assert_it_has_stopped(&log, Offset(acknowledged)).await;
            assert_eq!(log.read(Stream::Events, CELL, Offset(acknowledged - 1), 10).await.unwrap().len(), 1);
        }
        let log = EmbeddedLog::open(&path).unwrap();
        let found = everything(&log, Stream::Events).await;
        assert!(found.len() as u64 >= acknowledged && acknowledged > 5, "{} of {acknowledged}", found.len());
        assert!(found.values().all(|record| record == &vec![7; 50_000]));
    }
}

/// Everybody is told that this log is over, and how to go on: nobody waits or tries again for ever.
async fn assert_it_has_stopped(log: &EmbeddedLog, end: Offset) {
    for _ in 0..3 {
        let error = log.append(Stream::Events, CELL, vec![1]).await.unwrap_err();
        assert!(matches!(error, AppendError::Stopped(_)) && error.advice() == Advice::Stop, "{error:?}");
        assert!(error.to_string().contains("start ebb again"), "{error}");
    }
    for error in
        [log.end(Stream::Events, CELL).await.unwrap_err(), log.wait(Stream::Events, CELL, end).await.unwrap_err()]
    {
        assert!(matches!(error, ReadError::Stopped(_)) && error.advice() == Advice::Stop, "{error:?}");
    }
}

/// A file that cannot grow, which redb meets before a commit.
#[derive(Debug)]
struct FixedDisk {
    file: redb::backends::FileBackend,
    len_max: u64,
}

impl redb::StorageBackend for FixedDisk {
    fn len(&self) -> Result<u64, std::io::Error> {
        self.file.len()
    }
    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), std::io::Error> {
        self.file.read(offset, out)
    }
    fn set_len(&self, len: u64) -> Result<(), std::io::Error> {
        if len > self.len_max {
            Err(std::io::Error::from(std::io::ErrorKind::StorageFull))
        } else {
            self.file.set_len(len)
        }
    }
    fn sync_data(&self) -> Result<(), std::io::Error> {
        self.file.sync_data()
    }
    fn write(&self, offset: u64, data: &[u8]) -> Result<(), std::io::Error> {
        self.file.write(offset, data)
    }
}

/// redb takes nothing after an error before a commit either. It used to be called retryable, and was tried for ever.
#[tokio::test(flavor = "multi_thread")]
async fn an_error_before_a_commit_stops_the_log_too() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("log.redb");
    drop(EmbeddedLog::open(&path).unwrap());
    let file = std::fs::OpenOptions::new().read(true).write(true).open(&path).unwrap();
    let len_max = file.metadata().unwrap().len() + (4 << 20);
    let disk = FixedDisk { file: redb::backends::FileBackend::new(file).unwrap(), len_max };
    let mut acknowledged = 0;
    {
        let log = EmbeddedLog::open_on(&path, disk).unwrap();
        let error = loop {
            match log.append(Stream::Events, CELL, vec![7; 50_000]).await {
                Ok(offset) => acknowledged = offset.0 + 1,
                Err(error) => break error,
            }
        };
        assert!(matches!(error, AppendError::Stopped(_)), "{error:?}");
        assert_it_has_stopped(&log, Offset(acknowledged)).await;
    }
    let log = EmbeddedLog::open(&path).unwrap();
    assert_eq!(everything(&log, Stream::Events).await.len() as u64, acknowledged);
    assert_eq!(log.append(Stream::Events, CELL, vec![1]).await.unwrap(), Offset(acknowledged));
}

/// A file that stops being readable when a test says so.
#[derive(Debug)]
struct DyingDisk {
    file: redb::backends::FileBackend,
    is_dead: Arc<AtomicBool>,
}

impl redb::StorageBackend for DyingDisk {
    fn len(&self) -> Result<u64, std::io::Error> {
        self.file.len()
    }
    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), std::io::Error> {
        if self.is_dead.load(Ordering::Relaxed) {
            return Err(std::io::Error::other("a sector cannot be read"));
        }
        self.file.read(offset, out)
    }
    fn set_len(&self, len: u64) -> Result<(), std::io::Error> {
        self.file.set_len(len)
    }
    fn sync_data(&self) -> Result<(), std::io::Error> {
        self.file.sync_data()
    }
    fn write(&self, offset: u64, data: &[u8]) -> Result<(), std::io::Error> {
        self.file.write(offset, data)
    }
}

/// A read that met an I/O error was called retryable, and was tried for ever.
#[tokio::test(flavor = "multi_thread")]
async fn an_error_of_a_read_ends_the_log_for_everybody() {
    const RECORDS: u64 = 40;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("log.redb");
    let log = EmbeddedLog::open(&path).unwrap();
    for _ in 0..RECORDS {
        log.append(Stream::Events, CELL, vec![7; 500_000]).await.unwrap();
    }
    drop(log);
    let file = std::fs::OpenOptions::new().read(true).write(true).open(&path).unwrap();
    let is_dead = Arc::new(AtomicBool::new(false));
    let disk = DyingDisk { file: redb::backends::FileBackend::new(file).unwrap(), is_dead: Arc::clone(&is_dead) };
    let log = EmbeddedLog::open_on(&path, disk).unwrap();
    is_dead.store(true, Ordering::Relaxed);
    let error = log.read(Stream::Events, CELL, Offset(0), usize::MAX).await.unwrap_err();
    assert!(matches!(error, ReadError::Stopped(_)) && error.advice() == Advice::Stop, "{error:?}");
    assert_it_has_stopped(&log, Offset(RECORDS)).await;
    drop(log);
    let log = EmbeddedLog::open(&path).unwrap();
    assert_eq!(everything(&log, Stream::Events).await.len() as u64, RECORDS);
}

/// Whether opening a copy of the file, as a kill would leave it, reads all of it.
fn is_repaired(path: &Path) -> bool {
    let copy = path.with_extension("copy");
    std::fs::copy(path, &copy).unwrap();
    let repaired = Arc::new(AtomicU64::new(0));
    let seen = Arc::clone(&repaired);
    let database = redb::Builder::new().set_repair_callback(move |_| seen.store(1, Ordering::Relaxed)).create(&copy);
    // A copy of a file in the midst of a commit may be of no use at all.
    database.is_err() || repaired.load(Ordering::Relaxed) > 0
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_that_was_idle_is_not_read_whole_after_a_kill() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("log.redb");
    let log = EmbeddedLog::open(&path).unwrap();
    for _ in 0..2 {
        log.append(Stream::Events, CELL, vec![7; 5_000]).await.unwrap();
        let begun = std::time::Instant::now();
        while is_repaired(&path) {
            assert!(begun.elapsed().as_secs() < 60, "an idle log is still read whole");
        }
    }
    assert_eq!(log.append(Stream::Events, CELL, vec![1]).await.unwrap(), Offset(2));
}

#[tokio::test]
async fn a_log_that_is_only_looked_at_is_never_made() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("log.redb");
    let error = events_log::open_existing(&events_log::LogUrl::file(path.clone())).await.err().unwrap();
    assert!(matches!(&error, OpenError::Absent { what } if what.contains("log.redb")), "{error}");
    assert!(!path.exists());
    drop(EmbeddedLog::open(&path).unwrap());
    events_log::open_existing(&events_log::LogUrl::file(path)).await.unwrap();
}

#[test]
fn a_file_of_something_else_is_refused_and_left_alone() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("notes.txt");
    std::fs::write(&path, "not a log at all, but somebody's notes".repeat(400)).unwrap();
    let error = EmbeddedLog::open(&path).unwrap_err();
    assert!(matches!(error, OpenError::Damaged { .. } | OpenError::File { .. }), "{error:?}");
    assert!(error.to_string().contains("notes.txt"));
    assert!(std::fs::read_to_string(&path).unwrap().starts_with("not a log"));
    let error = EmbeddedLog::open(directory.path()).unwrap_err();
    assert!(matches!(error, OpenError::File { .. }), "{error:?}");
}

/// 256 callers at once share their fsyncs: the file is synced far fewer times than there are records.
#[tokio::test(flavor = "multi_thread")]
async fn callers_at_once_share_a_sync() {
    #[derive(Debug)]
    struct Counting(redb::backends::FileBackend, Arc<AtomicU64>);
    impl redb::StorageBackend for Counting {
        fn len(&self) -> Result<u64, std::io::Error> {
            self.0.len()
        }
        fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), std::io::Error> {
            self.0.read(offset, out)
        }
        fn set_len(&self, len: u64) -> Result<(), std::io::Error> {
            self.0.set_len(len)
        }
        fn sync_data(&self) -> Result<(), std::io::Error> {
            self.1.fetch_add(1, Ordering::Relaxed);
            self.0.sync_data()
        }
        fn write(&self, offset: u64, data: &[u8]) -> Result<(), std::io::Error> {
            self.0.write(offset, data)
        }
    }
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("log.redb");
    drop(EmbeddedLog::open(&path).unwrap());
    let file = std::fs::OpenOptions::new().read(true).write(true).open(&path).unwrap();
    let syncs = Arc::new(AtomicU64::new(0));
    let log =
        EmbeddedLog::open_on(&path, Counting(redb::backends::FileBackend::new(file).unwrap(), Arc::clone(&syncs)))
            .unwrap();
    let mut fewest = u64::MAX;
    // On a busy machine the commit of an idle log may come between.
    for _ in 0..5 {
        let before = syncs.load(Ordering::Relaxed);
        log.append(Stream::Events, CELL, vec![0; 300]).await.unwrap();
        fewest = fewest.min(syncs.load(Ordering::Relaxed) - before);
    }
    assert_eq!(fewest, 1, "one append alone costs one sync");
    let before = syncs.load(Ordering::Relaxed);
    let appends = (0..256).map(|_| log.append(Stream::Events, CELL, vec![0; 300]));
    futures::future::try_join_all(appends).await.unwrap();
    let together = syncs.load(Ordering::Relaxed) - before;
    assert!(together <= 16, "{together} syncs for 256 appends at once");
}
