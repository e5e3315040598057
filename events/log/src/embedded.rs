//! The embedded log: one redb file, one writer thread, one fsync for all appends that wait. No server, survives kill -9.
//!
//! Callers put requests into a bounded queue; the thread takes all that are there, writes them in one transaction, and only
//! when that is durable makes them readable (`tail.rs`) and answers. So one append alone costs one fsync, and 256 at once cost
//! one or two. A second process on the same file is refused by the file's lock, which the kernel frees whatever kills us.
//!
//! The file system's end is met in two ways: below a reserve of free space appends are refused before anything is written and
//! work again once there is space; an I/O error ends the log for this process, reads and waits included, because redb takes
//! nothing after one and what is on disk is known again only after reopening. Acknowledged records are safe in both.
//!
//! After a kill, redb walks the whole file unless its last commit saved what it needs to know. That doubles the cost of a
//! commit, so only one more, empty commit does it, once nobody has appended for [`IDLE`].

use crate::tail::{Look, Tails};
use crate::{AppendError, BoxFuture, Cause, EventLog, OpenError, RECORD_LEN_MAX, ReadError, Record, Stream};
use bytes::Bytes;
use events_schema::{Cell, Offset};
use redb::{Database, ReadableDatabase, ReadableTable, TableDefinition, TableError};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::runtime::Runtime;
use tokio::sync::{mpsc, oneshot, watch};

/// (stream, cell, offset) → record.
const RECORDS: TableDefinition<'_, (u8, u32, u64), &[u8]> = TableDefinition::new("records");
/// (stream, cell) → (first offset left, first offset not yet written).
const POSITIONS: TableDefinition<'_, (u8, u32), (u64, u64)> = TableDefinition::new("positions");
/// Name → number; `format` is [`FORMAT`].
const ABOUT: TableDefinition<'_, &str, u64> = TableDefinition::new("about");
/// Layout of the tables above.
const FORMAT: u64 = 1;

/// Requests that wait for the writer; more callers than that wait for a place.
const QUEUE_LEN_MAX: usize = 1_024;
/// Records of one commit; bounds the time until the first of them is answered.
const GROUP_RECORDS_MAX: usize = 1_024;
/// Bytes of one commit.
const GROUP_BYTES_MAX: usize = 32 << 20;
/// Newest bytes of each stream and cell that are read without touching the file.
const TAIL_BYTES_MAX: usize = 8 << 20;
/// redb's page cache: the upper levels of the tree and the pages of a recovery's reads.
const CACHE_BYTES: usize = 64 << 20;

/// Time without an append after which the file is made quick to open after a kill: long enough that a job's own rhythm of
/// reports does not meet it, short enough that most kills come later.
const IDLE: Duration = Duration::from_millis(250);

/// How an embedded log is opened; the default is right for everybody but tests.
#[derive(Debug, Clone, Copy)]
pub struct EmbeddedOptions {
    /// Free space of the file system, in bytes, below which appends are refused, so that a commit never meets the end of it.
    pub reserve_bytes: u64,
}

impl Default for EmbeddedOptions {
    fn default() -> Self {
        // One full group twice (data and copied tree pages) with room to spare.
        Self { reserve_bytes: 96 << 20 }
    }
}

/// The log in one file.
#[derive(Debug)]
pub struct EmbeddedLog {
    shared: Arc<Shared>,
    /// `None` only while dropping.
    queue: Option<mpsc::Sender<Request>>,
    writer: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    path: PathBuf,
    database: Database,
    tails: Tails,
    /// Why nothing will be written or read any more.
    broken: watch::Sender<Option<Cause>>,
}

#[derive(Debug)]
enum Request {
    Append { stream: Stream, cell: Cell, record: Vec<u8>, done: oneshot::Sender<Result<Offset, AppendError>> },
    Trim { stream: Stream, cell: Cell, below: Offset, done: oneshot::Sender<Result<(), AppendError>> },
}

impl Request {
    fn bytes(&self) -> usize {
        match self {
            Request::Append { record, .. } => record.len(),
            Request::Trim { .. } => 0,
        }
    }

    fn refuse(self, error: AppendError) {
        // A caller that went away does not want to know.
        match self {
            Request::Append { done, .. } => drop(done.send(Err(error))),
            Request::Trim { done, .. } => drop(done.send(Err(error))),
        }
    }
}

/// What is left and where the next record goes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Position {
    first: u64,
    end: u64,
}

impl EmbeddedLog {
    /// Opens or creates the file; repairs it after a kill in the midst of appends, which reads all of it (measured: 1.7 s for
    /// 1 GB). Blocks.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, OpenError> {
        Self::open_with(path, EmbeddedOptions::default())
    }

    /// The same with other options.
    pub fn open_with(path: impl AsRef<Path>, options: EmbeddedOptions) -> Result<Self, OpenError> {
        let path = path.as_ref();
        let file_error = |source: std::io::Error| OpenError::File { path: path.to_owned(), source: Arc::new(source) };
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        std::fs::create_dir_all(parent).map_err(file_error)?;
        let shown = path.to_owned();
        let database = redb::Builder::new()
            .set_cache_size(CACHE_BYTES)
            .set_repair_callback(move |session| {
                let percent = (session.progress() * 100.0) as u32;
                tracing::warn!(path = %shown.display(), percent, "the log was not closed; all of it is checked once");
            })
            .create(path)
            .map_err(|error| open_error(path, error))?;
        let log = Self::start(path, database, options)?;
        // The file's name has to be as durable as what is written into it.
        std::fs::File::open(parent).and_then(|directory| directory.sync_all()).map_err(file_error)?;
        Ok(log)
    }

    /// The same on a storage of a test's own, which can fail where a test wants it to.
    #[cfg(feature = "testing")]
    pub fn open_on(path: impl AsRef<Path>, storage: impl redb::StorageBackend) -> Result<Self, OpenError> {
        let path = path.as_ref();
        let database = redb::Builder::new().create_with_backend(storage).map_err(|error| open_error(path, error))?;
        Self::start(path, database, EmbeddedOptions { reserve_bytes: 0 })
    }

    fn start(path: &Path, database: Database, options: EmbeddedOptions) -> Result<Self, OpenError> {
        let positions = prepare(&database).map_err(|problem| match problem {
            Prepare::Redb(error) => open_error(path, error),
            Prepare::Format(found) => OpenError::Format { path: path.to_owned(), found, expected: FORMAT },
        })?;
        let tails = Tails::new(TAIL_BYTES_MAX);
        for ((stream, cell), position) in &positions {
            tails.begin_at(*stream, *cell, Offset(position.end));
        }
        let broken = watch::Sender::new(None);
        let shared = Arc::new(Shared { path: path.to_owned(), database, tails, broken });
        let (sender, queue) = mpsc::channel(QUEUE_LEN_MAX);
        let thread_error = |source: std::io::Error| OpenError::Thread { source: Arc::new(source) };
        // For nothing but a wait that ends.
        let clock = tokio::runtime::Builder::new_current_thread().enable_time().build().map_err(thread_error)?;
        let reserve_bytes = options.reserve_bytes;
        let writer = Writer { shared: Arc::clone(&shared), queue, clock, positions, reserve_bytes, is_quick: true };
        let thread = std::thread::Builder::new().name("log-writer".to_owned()).spawn(move || writer.run());
        let thread = thread.map_err(thread_error)?;
        Ok(Self { shared, queue: Some(sender), writer: Some(thread) })
    }

    async fn request<T>(
        &self,
        request: Request,
        answer: oneshot::Receiver<Result<T, AppendError>>,
    ) -> Result<T, AppendError> {
        let Some(queue) = &self.queue else { return Err(AppendError::Stopped(Arc::new(WriterGone))) };
        queue.send(request).await.map_err(|_| AppendError::Stopped(Arc::new(WriterGone)))?;
        // The writer died with our request in hand: nobody knows how far it came.
        answer.await.unwrap_or_else(|_| Err(AppendError::Unknown(Arc::new(WriterGone))))
    }
}

impl Drop for EmbeddedLog {
    fn drop(&mut self) {
        // Ends the writer after the requests it already has; then nobody holds the file.
        self.queue = None;
        if let Some(writer) = self.writer.take()
            && writer.join().is_err()
        {
            tracing::error!(path = %self.shared.path.display(), "the log's writer thread panicked");
        }
    }
}

impl EventLog for EmbeddedLog {
    fn append(&self, stream: Stream, cell: Cell, record: Vec<u8>) -> BoxFuture<'_, Result<Offset, AppendError>> {
        Box::pin(async move {
            if record.len() > RECORD_LEN_MAX {
                return Err(AppendError::TooLarge { bytes: record.len(), bytes_max: RECORD_LEN_MAX });
            }
            let (done, answer) = oneshot::channel();
            self.request(Request::Append { stream, cell, record, done }, answer).await
        })
    }

    fn read(
        &self,
        stream: Stream,
        cell: Cell,
        from: Offset,
        bytes_max: usize,
    ) -> BoxFuture<'_, Result<Vec<Record>, ReadError>> {
        Box::pin(async move {
            if let Look::Here(records) = self.shared.tails.of(stream, cell).look(from, bytes_max) {
                return Ok(records);
            }
            let shared = Arc::clone(&self.shared);
            let read = tokio::task::spawn_blocking(move || shared.read_file(stream, cell, from, bytes_max)).await;
            read.map_err(|panic| ReadError::Unavailable(Arc::new(panic)))?
        })
    }

    fn end(&self, stream: Stream, cell: Cell) -> BoxFuture<'_, Result<Offset, ReadError>> {
        Box::pin(async move {
            // Who asks for the end wants to know whether the log lives. One that takes nothing any more does not.
            if let Some(cause) = self.shared.broken.borrow().clone() {
                return Err(ReadError::Stopped(cause));
            }
            // This process is the only writer, so the tail's end is the end.
            Ok(self.shared.tails.of(stream, cell).end())
        })
    }

    fn wait(&self, stream: Stream, cell: Cell, from: Offset) -> BoxFuture<'_, Result<(), ReadError>> {
        Box::pin(async move {
            let tail = self.shared.tails.of(stream, cell);
            let mut broken = self.shared.broken.subscribe();
            tokio::select! {
                biased;
                waited = tail.wait(from) => waited,
                cause = broken.wait_for(Option::is_some) => {
                    // The sender is in `shared`, which lives as long as `self`.
                    let cause = cause.ok().and_then(|cause| cause.clone());
                    Err(cause.map_or(ReadError::Closed, ReadError::Stopped))
                }
            }
        })
    }

    fn trim(&self, stream: Stream, cell: Cell, below: Offset) -> BoxFuture<'_, Result<(), AppendError>> {
        Box::pin(async move {
            let (done, answer) = oneshot::channel();
            self.request(Request::Trim { stream, cell, below, done }, answer).await
        })
    }
}

impl Shared {
    /// redb gives and takes nothing after an I/O error, of a read as of a write: this log is over, for whoever appends too.
    fn unreadable(&self, error: redb::Error) -> ReadError {
        let is_over = matches!(error, redb::Error::Io(_) | redb::Error::PreviousIo);
        let cause: Cause = Arc::new(error);
        if !is_over {
            return ReadError::Unavailable(cause);
        }
        tracing::error!(path = %self.path.display(), error = %cause, "the log's file met an error; the log gives nothing more");
        self.broken.send_if_modified(|broken| {
            let first = broken.is_none();
            if first {
                *broken = Some(Arc::clone(&cause));
            }
            first
        });
        ReadError::Stopped(cause)
    }

    /// Records that have left the tail.
    fn read_file(&self, stream: Stream, cell: Cell, from: Offset, bytes_max: usize) -> Result<Vec<Record>, ReadError> {
        let unavailable = |error: redb::Error| self.unreadable(error);
        let transaction = self.database.begin_read().map_err(|e| unavailable(e.into()))?;
        let positions = transaction.open_table(POSITIONS).map_err(|e| unavailable(e.into()))?;
        let key = (stream.number(), cell.0);
        let (first, _) =
            positions.get(key).map_err(|e| unavailable(e.into()))?.map_or((0, 0), |position| position.value());
        if from.0 < first {
            return Err(ReadError::Trimmed { from, first: Offset(first) });
        }
        let records = transaction.open_table(RECORDS).map_err(|e| unavailable(e.into()))?;
        let range =
            records.range((key.0, key.1, from.0)..=(key.0, key.1, u64::MAX)).map_err(|e| unavailable(e.into()))?;
        let mut found = Vec::new();
        let mut bytes = 0;
        for entry in range {
            let (place, record) = entry.map_err(|e| unavailable(e.into()))?;
            bytes += record.value().len();
            if !found.is_empty() && bytes > bytes_max {
                break;
            }
            found.push(Record { offset: Offset(place.value().2), bytes: Bytes::copy_from_slice(record.value()) });
        }
        Ok(found)
    }
}

struct Writer {
    shared: Arc<Shared>,
    queue: mpsc::Receiver<Request>,
    clock: Runtime,
    /// As committed.
    positions: BTreeMap<(Stream, Cell), Position>,
    reserve_bytes: u64,
    /// Whether nothing was written since the file was last made quick to open, or since it was opened.
    is_quick: bool,
}

/// Why a group was not committed.
enum GroupError {
    /// Nothing of it was written, and the next one may be.
    Refused(AppendError),
    /// Nothing of it was written, nor will be.
    NotWritten(Cause),
    /// Perhaps it was written. Nothing will be any more.
    Unknown(Cause),
}

impl GroupError {
    fn not_written(error: impl Into<redb::Error>) -> Self {
        Self::NotWritten(Arc::new(error.into()))
    }
}

/// A committed group, ready to be shown and answered.
#[derive(Default)]
struct Committed {
    positions: BTreeMap<(Stream, Cell), Position>,
    records: BTreeMap<(Stream, Cell), Vec<Record>>,
    trims: Vec<(Stream, Cell, Offset)>,
    appended: Vec<(oneshot::Sender<Result<Offset, AppendError>>, Offset)>,
    trimmed: Vec<oneshot::Sender<Result<(), AppendError>>>,
}

impl Writer {
    fn run(mut self) {
        while let Some(first) = self.next() {
            let group = self.group(first);
            self.is_quick = false;
            match self.commit(&group) {
                Ok(positions) => self.publish(group, positions),
                Err(GroupError::Refused(error)) => group.into_iter().for_each(|request| request.refuse(error.clone())),
                Err(GroupError::NotWritten(cause)) => return self.stop(group, &cause, AppendError::Stopped),
                Err(GroupError::Unknown(cause)) => return self.stop(group, &cause, AppendError::Unknown),
            }
        }
    }

    /// The next request; while there is none for a while, the file is made quick to open.
    fn next(&mut self) -> Option<Request> {
        if !self.is_quick {
            let queue = &mut self.queue;
            if let Ok(next) = self.clock.block_on(async { tokio::time::timeout(IDLE, queue.recv()).await }) {
                return next;
            }
            // It changes nothing that anybody asked for. If it cannot be written, the next append finds out.
            if let Err(error) = self.save_allocator() {
                tracing::warn!(path = %self.shared.path.display(), %error, "the log could not be made quick to open");
            }
            self.is_quick = true;
        }
        self.queue.blocking_recv()
    }

    fn save_allocator(&self) -> Result<(), redb::Error> {
        let mut transaction = self.shared.database.begin_write()?;
        transaction.set_quick_repair(true);
        transaction.commit()?;
        Ok(())
    }

    /// Everything that waits, up to the bounds of a commit.
    fn group(&mut self, first: Request) -> Vec<Request> {
        let mut bytes = first.bytes();
        let mut group = vec![first];
        while group.len() < GROUP_RECORDS_MAX && bytes < GROUP_BYTES_MAX {
            let Ok(next) = self.queue.try_recv() else { break };
            bytes += next.bytes();
            group.push(next);
        }
        group
    }

    /// After an I/O error: answers the group, then tells everybody that this log is over.
    fn stop(mut self, group: Vec<Request>, cause: &Cause, answer: fn(Cause) -> AppendError) {
        tracing::error!(path = %self.shared.path.display(), error = %cause, "the log's file met an error; the log takes nothing more");
        self.shared.broken.send_replace(Some(Arc::clone(cause)));
        group.into_iter().for_each(|request| request.refuse(answer(Arc::clone(cause))));
        while let Some(request) = self.queue.blocking_recv() {
            request.refuse(AppendError::Stopped(Arc::clone(cause)));
        }
    }

    /// Writes a group in one transaction and returns the positions after it.
    fn commit(&self, group: &[Request]) -> Result<BTreeMap<(Stream, Cell), Position>, GroupError> {
        self.check_space(group)?;
        let mut positions = BTreeMap::new();
        let transaction = self.shared.database.begin_write().map_err(GroupError::not_written)?;
        {
            let mut records = transaction.open_table(RECORDS).map_err(GroupError::not_written)?;
            for request in group {
                match request {
                    Request::Append { stream, cell, record, .. } => {
                        let position = self.position(&mut positions, *stream, *cell);
                        records
                            .insert((stream.number(), cell.0, position.end), record.as_slice())
                            .map_err(GroupError::not_written)?;
                        position.end += 1;
                    }
                    Request::Trim { stream, cell, below, .. } => {
                        let position = self.position(&mut positions, *stream, *cell);
                        position.first = position.first.max(below.0.min(position.end));
                        let gone = (stream.number(), cell.0, 0)..(stream.number(), cell.0, position.first);
                        records.retain_in(gone, |_, _| false).map_err(GroupError::not_written)?;
                    }
                }
            }
            let mut table = transaction.open_table(POSITIONS).map_err(GroupError::not_written)?;
            for ((stream, cell), position) in &positions {
                table
                    .insert((stream.number(), cell.0), (position.first, position.end))
                    .map_err(GroupError::not_written)?;
            }
        }
        transaction.commit().map_err(|error| GroupError::Unknown(Arc::new(error)))?;
        Ok(positions)
    }

    fn position<'p>(
        &self,
        changed: &'p mut BTreeMap<(Stream, Cell), Position>,
        stream: Stream,
        cell: Cell,
    ) -> &'p mut Position {
        changed
            .entry((stream, cell))
            .or_insert_with(|| self.positions.get(&(stream, cell)).copied().unwrap_or_default())
    }

    /// Refuses a group that could meet the end of the file system. Removing is always allowed: it is how space comes back.
    fn check_space(&self, group: &[Request]) -> Result<(), GroupError> {
        let bytes: usize = group.iter().map(Request::bytes).sum();
        if self.reserve_bytes == 0 || group.iter().all(|request| matches!(request, Request::Trim { .. })) {
            return Ok(());
        }
        // A file system that cannot say is written to until it refuses.
        let Ok(status) = rustix::fs::statvfs(&self.shared.path) else { return Ok(()) };
        let free_bytes = status.f_bavail.saturating_mul(status.f_frsize);
        let reserve_bytes = self.reserve_bytes.saturating_add(bytes as u64);
        if free_bytes >= reserve_bytes {
            return Ok(());
        }
        Err(GroupError::Refused(AppendError::Full { path: self.shared.path.clone(), free_bytes, reserve_bytes }))
    }

    /// Makes a committed group readable, then answers it: whoever has an answer can read what it stands for.
    fn publish(&mut self, group: Vec<Request>, positions: BTreeMap<(Stream, Cell), Position>) {
        let mut committed = Committed { positions, ..Committed::default() };
        let mut next: BTreeMap<(Stream, Cell), u64> = BTreeMap::new();
        for request in group {
            match request {
                Request::Append { stream, cell, record, done } => {
                    let before = self.positions.get(&(stream, cell)).copied().unwrap_or_default().end;
                    let offset = next.entry((stream, cell)).or_insert(before);
                    let place = Offset(*offset);
                    *offset += 1;
                    committed
                        .records
                        .entry((stream, cell))
                        .or_default()
                        .push(Record { offset: place, bytes: Bytes::from(record) });
                    committed.appended.push((done, place));
                }
                Request::Trim { stream, cell, below, done } => {
                    committed.trims.push((stream, cell, below));
                    committed.trimmed.push(done);
                }
            }
        }
        self.positions.extend(committed.positions);
        for ((stream, cell), records) in committed.records {
            self.shared.tails.of(stream, cell).push(records);
        }
        for (stream, cell, below) in committed.trims {
            self.shared.tails.of(stream, cell).trim(below);
        }
        committed.appended.into_iter().for_each(|(done, offset)| drop(done.send(Ok(offset))));
        committed.trimmed.into_iter().for_each(|done| drop(done.send(Ok(()))));
    }
}

/// The writer thread ended before the log was dropped, which only a panic does.
#[derive(Debug, thiserror::Error)]
#[error("the log's writer thread is gone")]
struct WriterGone;

enum Prepare {
    Redb(redb::Error),
    Format(u64),
}

impl<E: Into<redb::Error>> From<E> for Prepare {
    fn from(error: E) -> Self {
        Prepare::Redb(error.into())
    }
}

/// Creates the tables of a new file, checks the format of an old one, and reads where every stream ends.
fn prepare(database: &Database) -> Result<BTreeMap<(Stream, Cell), Position>, Prepare> {
    let transaction = database.begin_read()?;
    let format = match transaction.open_table(ABOUT) {
        Ok(about) => about.get("format")?.map(|format| format.value()),
        Err(TableError::TableDoesNotExist(_)) => None,
        Err(error) => return Err(error.into()),
    };
    drop(transaction);
    match format {
        None => {
            let transaction = database.begin_write()?;
            transaction.open_table(RECORDS)?;
            transaction.open_table(POSITIONS)?;
            transaction.open_table(ABOUT)?.insert("format", FORMAT)?;
            transaction.commit()?;
            return Ok(BTreeMap::new());
        }
        Some(FORMAT) => {}
        Some(found) => return Err(Prepare::Format(found)),
    }
    let transaction = database.begin_read()?;
    let mut positions = BTreeMap::new();
    for entry in transaction.open_table(POSITIONS)?.iter()? {
        let (key, position) = entry?;
        let (number, cell) = key.value();
        let (first, end) = position.value();
        if let Some(stream) = Stream::ALL.into_iter().find(|stream| stream.number() == number) {
            positions.insert((stream, Cell(cell)), Position { first, end });
        }
    }
    Ok(positions)
}

fn open_error(path: &Path, error: impl Into<redb::Error>) -> OpenError {
    let path = path.to_owned();
    match error.into() {
        redb::Error::DatabaseAlreadyOpen => OpenError::Held { path },
        redb::Error::Io(source)
            if source.kind() != std::io::ErrorKind::InvalidData
                && source.kind() != std::io::ErrorKind::UnexpectedEof =>
        {
            OpenError::File { path, source: Arc::new(source) }
        }
        error => OpenError::Damaged { path, source: Arc::new(error) },
    }
}
