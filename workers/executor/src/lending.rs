//! Executors of one host lend each other their sums instead of copying them: a frame says where a stretch lies, its receiver reads it there and says
//! when it has done so. Before two exchange anything for the first time they show each other the files of which they are going to lend, which are mapped
//! beside everything else: pages that are mapped when they are first read hold up who reads them.
//!
//! **Nothing that is lent is changed.** A lender holds what it lent until it is given back, so that the buffer is neither used again nor added to.
//! Where a link ends before that, its peer may still be reading, even be stopped in the middle of a sum for a minute and then finish it: so what it was
//! lent is held until its process has ended. Who reads is found out first: each side tells how its process is recognised ([`workers_memory::Sign`]), the
//! other looks for it, and says so if it sees it. Between hosts, users or containers nobody sees anything, and stretches are copied.
//!
//! Bytes on the wire are `wire.rs`, memory is `workers/memory`. Decides nothing about the reduction.

use crate::buffers::SharedElements;
use crate::outbox::Outbox;
use crate::wire::{Loan, PIECE_ELEMENTS, Shown};
use std::collections::BTreeMap;
use std::ops::{Deref, Range};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use workers_member::Kind;
use workers_memory::{PeerFile, PeerProcess, Sign};

/// Files of a peer that stay mapped on one link. It has one for each vector as long as a gradient that it uses, and one for 32 pieces.
const FILES_MAX: usize = 1_024;

/// What one end of a link lends to the other.
#[derive(Debug, Default)]
pub struct Lender {
    /// The process of the other end, once it was recognised.
    process: OnceLock<PeerProcess>,
    /// Whether it has said that it can read this one's memory.
    readable: AtomicBool,
    loans: Mutex<Loans>,
}

#[derive(Default)]
struct Loans {
    next: u64,
    lent: BTreeMap<u64, SharedElements>,
    /// The link is over.
    closed: bool,
}

impl std::fmt::Debug for Loans {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Loans").field("lent", &self.lent.len()).field("closed", &self.closed).finish()
    }
}

impl Lender {
    /// Looks for the process that a sign is of. Whether its memory can be read here.
    pub fn recognise(&self, sign: &Sign) -> bool {
        match PeerProcess::find(sign) {
            Ok(process) => self.process.set(process).is_ok(),
            Err(error) => {
                tracing::debug!(%error, "the memory of a peer cannot be read from here; sums are copied");
                false
            }
        }
    }

    /// The other end can read this one's memory.
    pub fn is_readable(&self) {
        self.readable.store(true, Ordering::Release);
    }

    /// The process at the other end.
    #[must_use]
    pub fn process(&self) -> Option<&PeerProcess> {
        self.process.get()
    }

    /// Lends a stretch, if the other end can read it and its end would be noticed.
    pub fn lend(&self, data: &SharedElements, range: &Range<usize>) -> Option<Loan> {
        if !self.readable.load(Ordering::Acquire) || self.process.get().is_none() {
            return None;
        }
        let place = data.place()?;
        let mut loans = self.loans();
        if loans.closed {
            return None;
        }
        let number = loans.next;
        loans.next += 1;
        loans.lent.insert(number, Arc::clone(data));
        let start = (place.start + range.start) as u64;
        Some(Loan { number, file: place.file, descriptor: place.descriptor, start, elements: range.len() as u64 })
    }

    /// A loan came back. Whether there was one.
    pub fn take_back(&self, loan: u64) -> bool {
        self.loans().lent.remove(&loan).is_some()
    }

    /// The link is over: waits with what is still lent until the other process has ended.
    pub fn close(&self) {
        let lent = {
            let mut loans = self.loans();
            loans.closed = true;
            std::mem::take(&mut loans.lent)
        };
        let Some(process) = self.process.get().filter(|_| !lent.is_empty()) else { return };
        if let Err(error) = process.wait_until_ended() {
            tracing::error!(%error, "whether a peer still reads what it was lent is not known; its memory is never used again");
            std::mem::forget(lent);
        }
    }

    fn loans(&self) -> std::sync::MutexGuard<'_, Loans> {
        self.loans.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Files of the peer at the other end, as they are mapped here. Belongs to the thread that reads the link.
#[derive(Debug, Default)]
pub struct Files {
    /// Lent of again and again.
    lasting: BTreeMap<u64, Arc<PeerFile>>,
    /// Of a copy of the replica, which its lender does not have any more once it was read: it is mapped until sums are lent, as they are to a member.
    copy: Option<(u64, Arc<PeerFile>)>,
}

impl Files {
    /// The stretches that a loan is of, as long as pieces; what is wrong otherwise. `kind`: what they are.
    pub fn borrow(
        &mut self,
        process: Option<&PeerProcess>,
        (kind, loan): (Kind, &Loan),
        outbox: &Weak<Outbox>,
    ) -> Result<Vec<Borrowed>, String> {
        let file = self.file(process, kind, loan)?;
        let bounds = usize::try_from(loan.start).ok().zip(usize::try_from(loan.elements).ok());
        let range = bounds.and_then(|(start, elements)| Some(start..start.checked_add(elements)?));
        let range = range.filter(|range| file.get(range.clone()).is_some());
        let range = range.ok_or_else(|| format!("{loan:?} is not in its file"))?;
        let receipt = Arc::new(Receipt { loan: loan.number, elements: range.len(), outbox: Weak::clone(outbox) });
        let piece = |start: usize| {
            let range = start..(start + PIECE_ELEMENTS).min(range.end);
            Borrowed { file: Arc::clone(&file), range, receipt: Arc::clone(&receipt) }
        };
        Ok(range.clone().step_by(PIECE_ELEMENTS).map(piece).collect())
    }

    /// Maps files that are going to be lent of, and their pages on a thread of its own. What cannot be mapped is not: that shows when it is lent.
    pub fn see(&mut self, process: Option<&PeerProcess>, shown: &[Shown]) {
        let Some(process) = process else { return };
        let new: Vec<&Shown> = shown.iter().filter(|shown| !self.lasting.contains_key(&shown.file)).collect();
        let mut files = Vec::new();
        for &Shown { file, descriptor } in new.into_iter().take(FILES_MAX.saturating_sub(self.lasting.len())) {
            match process.open(file, descriptor) {
                Ok(opened) => files.push(Arc::clone(self.lasting.entry(file).or_insert(Arc::new(opened)))),
                Err(error) => tracing::debug!(%error, file, "a file that a peer shows cannot be read"),
            }
        }
        if files.is_empty() {
            return;
        }
        let map = move || {
            for file in files {
                if let Err(error) = file.map_pages() {
                    tracing::debug!(%error, "pages of a peer's file are mapped when they are read");
                }
            }
        };
        if let Err(error) = std::thread::Builder::new().name("ebb-maps".to_owned()).spawn(map) {
            tracing::warn!(%error, "no thread is left to map what a peer shows");
        }
    }

    fn file(&mut self, process: Option<&PeerProcess>, kind: Kind, loan: &Loan) -> Result<Arc<PeerFile>, String> {
        let is_copy = kind == Kind::Replica;
        self.copy.take_if(|(file, _)| match kind {
            Kind::Replica => *file != loan.file,
            // What a newcomer is sent beside it.
            Kind::Gradient => false,
            Kind::Partial(_) | Kind::Reduced => true,
        });
        let known = if is_copy { self.copy.as_ref().map(|(_, file)| file) } else { self.lasting.get(&loan.file) };
        if let Some(file) = known {
            return Ok(Arc::clone(file));
        }
        let process = process.ok_or("a peer lends that was not recognised")?;
        let file = process.open(loan.file, loan.descriptor);
        let file = Arc::new(file.map_err(|error| format!("the memory that a peer lends cannot be read: {error}"))?);
        if is_copy {
            self.copy = Some((loan.file, Arc::clone(&file)));
            return Ok(file);
        }
        if self.lasting.len() >= FILES_MAX {
            // Those in use stay mapped as long as they are.
            self.lasting.clear();
        }
        self.lasting.insert(loan.file, Arc::clone(&file));
        Ok(file)
    }
}

/// A stretch in a peer's memory. The loan is given back when the last of its stretches is dropped.
#[derive(Debug)]
pub struct Borrowed {
    file: Arc<PeerFile>,
    range: Range<usize>,
    receipt: Arc<Receipt>,
}

impl Borrowed {
    /// What follows in the same loan becomes a part of this; else it is given back.
    pub fn extend(&mut self, next: Self) -> Result<(), Self> {
        if !Arc::ptr_eq(&self.receipt, &next.receipt) || self.range.end != next.range.start {
            return Err(next);
        }
        self.range.end = next.range.end;
        Ok(())
    }
}

impl Deref for Borrowed {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        // Looked at when it was borrowed, and files of segments never change their length.
        self.file.get(self.range.clone()).unwrap_or_default()
    }
}

#[derive(Debug)]
struct Receipt {
    loan: u64,
    elements: usize,
    /// Gone with the link; then the lender waits for the end of this process.
    outbox: Weak<Outbox>,
}

impl Drop for Receipt {
    fn drop(&mut self) {
        if let Some(outbox) = self.outbox.upgrade() {
            outbox.give_back(self.loan, self.elements);
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::buffers::Pool;
    use workers_memory::Door;

    /// A lender to this process itself.
    fn lender(door: &Door) -> Lender {
        let lender = Lender::default();
        assert!(lender.recognise(&door.sign()));
        lender.is_readable();
        lender
    }

    fn buffer() -> (Pool, SharedElements) {
        let pool = Pool::mapped(2 * PIECE_ELEMENTS);
        let mut buffer = pool.take();
        buffer.iter_mut().enumerate().for_each(|(at, element)| *element = at as f32);
        (pool, Arc::new(buffer))
    }

    /// Elements of a vector as a peer lends them that is gone already.
    pub(crate) fn lent(elements: &[f32], range: Range<usize>) -> Vec<Borrowed> {
        let door = Door::new([6; 16]).unwrap();
        let (lender, mut buffer) = (lender(&door), Pool::mapped(elements.len()).take());
        buffer.copy_from_slice(elements);
        let loan = lender.lend(&(Arc::new(buffer) as SharedElements), &range).unwrap();
        Files::default().borrow(lender.process(), (Kind::Reduced, &loan), &Weak::new()).unwrap()
    }

    #[test]
    fn what_was_shown_is_mapped_before_it_is_lent() {
        let (door, pool) = (Door::new([7; 16]).unwrap(), Pool::mapped(9));
        pool.reserve(2);
        let (lender, data) = (lender(&door), Arc::new(pool.take()) as SharedElements);
        let loan = lender.lend(&data, &(0..9)).unwrap();
        let mut files = Files::default();
        assert!(files.borrow(None, (Kind::Reduced, &loan), &Weak::new()).is_err(), "it has to be opened");
        let unknown = Shown { file: u64::MAX, descriptor: -1 };
        files.see(lender.process(), &[&[unknown][..], &pool.files()].concat());
        assert_eq!(files.lasting.len(), 2, "what is not there is passed over");
        assert_eq!(files.borrow(None, (Kind::Reduced, &loan), &Weak::new()).unwrap()[0].len(), 9);
        files.see(None, &pool.files());
    }

    #[test]
    fn what_is_lent_is_read_where_it_lies_and_used_again_only_after_it_came_back() {
        let (door, (pool, data)) = (Door::new([1; 16]).unwrap(), buffer());
        let lender = lender(&door);
        let place = data.place().unwrap();
        let loan = lender.lend(&data, &(5..PIECE_ELEMENTS + 7)).unwrap();
        drop(data);
        assert_ne!(pool.take().segment().unwrap().place(), place, "it is lent");
        let borrowed = Files::default().borrow(lender.process(), (Kind::Reduced, &loan), &Weak::new()).unwrap();
        let lens: Vec<usize> = borrowed.iter().map(|piece| piece.len()).collect();
        assert_eq!((lens, borrowed[0][0], borrowed[1][1]), (vec![PIECE_ELEMENTS, 2], 5.0, (PIECE_ELEMENTS + 6) as f32));
        assert!(lender.take_back(loan.number) && !lender.take_back(loan.number), "once");
        let free = [pool.take(), pool.take()].map(|buffer| buffer.segment().unwrap().place());
        assert!(free.contains(&place));
    }

    /// A newcomer would have a second replica mapped for as long as it is a member.
    #[test]
    fn a_copy_of_the_replica_is_mapped_until_a_sum_is_lent() {
        let (door, (_pool, data), (_other, copy)) = (Door::new([8; 16]).unwrap(), buffer(), buffer());
        let (lender, mut files) = (lender(&door), Files::default());
        let mut borrow = |kind, data: &SharedElements| {
            let loan = lender.lend(data, &(0..9)).unwrap();
            let file = Arc::downgrade(&files.borrow(lender.process(), (kind, &loan), &Weak::new()).unwrap()[0].file);
            (file, files.lasting.len())
        };
        let (of_copy, _) = borrow(Kind::Replica, &copy);
        assert!(Weak::ptr_eq(&of_copy, &borrow(Kind::Replica, &copy).0), "it is not mapped once more for each stretch");
        assert_eq!((borrow(Kind::Gradient, &data).1, of_copy.strong_count()), (1, 1));
        let (of_sum, lasting) = borrow(Kind::Reduced, &data);
        assert_eq!((of_copy.strong_count(), of_sum.strong_count(), lasting), (0, 1, 1));
        assert_eq!((borrow(Kind::Replica, &copy).0.strong_count(), of_sum.strong_count()), (1, 1));
    }

    #[test]
    fn a_peer_that_still_lives_keeps_what_it_was_lent_when_its_link_ends() {
        let (door, (_pool, data)) = (Door::new([2; 16]).unwrap(), buffer());
        let lender = Arc::new(lender(&door));
        lender.lend(&data, &(0..9)).unwrap();
        // Waits for the end of this very process.
        let closing = Arc::clone(&lender);
        std::thread::spawn(move || closing.close());
        let mut kept = 1;
        while let Some(loan) = lender.lend(&data, &(0..9)) {
            // The link may end in between.
            kept += usize::from(!lender.take_back(loan.number));
            std::thread::yield_now();
        }
        assert_eq!(Arc::strong_count(&data), 1 + kept);
    }

    #[test]
    fn nothing_is_lent_to_who_cannot_read_it_or_is_not_known() {
        let (door, (_pool, data)) = (Door::new([3; 16]).unwrap(), buffer());
        let stranger = Lender::default();
        stranger.is_readable();
        assert_eq!(stranger.lend(&data, &(0..1)), None, "its end would not be noticed");
        let silent = Lender::default();
        assert!(silent.recognise(&door.sign()));
        assert_eq!(silent.lend(&data, &(0..1)), None);
        let own: SharedElements = Arc::new(vec![1.0]);
        assert_eq!(lender(&door).lend(&own, &(0..1)), None, "it lies nowhere");
        assert!(!Lender::default().recognise(&Sign { word: [4; 16], ..door.sign() }));
    }

    #[test]
    fn a_loan_of_what_is_not_there_is_refused() {
        let (door, (_pool, data)) = (Door::new([5; 16]).unwrap(), buffer());
        let lender = lender(&door);
        let loan = lender.lend(&data, &(0..9)).unwrap();
        let mut files = Files::default();
        let mut refused = |loan: Loan| files.borrow(lender.process(), (Kind::Reduced, &loan), &Weak::new()).is_err();
        assert!(refused(Loan { file: loan.file + 1000, ..loan }));
        assert!(refused(Loan { elements: 1 << 30, ..loan }));
        assert!(refused(Loan { start: u64::MAX, ..loan }));
        assert!(!refused(loan));
        assert!(
            Files::default().borrow(None, (Kind::Reduced, &loan), &Weak::new()).is_err(),
            "from nobody that is known"
        );
    }
}
