//! An ordered map whose clone is free until it is written to: `decide` works on a clone of the whole state for every input.
//!
//! Sorted entries in chunks, and chunks in groups, behind shared pointers; a write copies the group, the chunk and the value it touches when somebody else still
//! holds them: a hundred thousand entries are remembered of some things, and one more must not copy a pointer to each chunk of them. Iteration is in key order, always. Not a general container: it has what the state needs.

use minicbor::encode::Write;
use minicbor::{Decode, Decoder, Encode, Encoder};
use std::cmp::Ordering;
use std::fmt;
use std::ops::Bound;
use std::sync::Arc;

/// Entries per chunk before it is split: a write to a shared table copies at most so many keys.
const CHUNK_LEN_MAX: usize = 16;

/// Chunks per group before it is split: a write to a shared table copies at most so many pointers to chunks. Few in tests, so that there are several groups.
const GROUP_LEN_MAX: usize = if cfg!(test) { 3 } else { 64 };

/// Entries that are passed by for one key before it is looked up instead: about as many as that costs.
const EACH_PASSED_MAX: usize = 16;

type Chunk<K, V> = Vec<(K, Arc<V>)>;
type Group<K, V> = Vec<Arc<Chunk<K, V>>>;

/// A persistent ordered map.
pub struct Table<K, V> {
    /// No group and no chunk is empty; keys ascend within and across them.
    groups: Arc<Vec<Arc<Group<K, V>>>>,
    len: usize,
    /// The entry that was written to last: where the next key is looked for first, because what is decided about many things goes from one to the next one. It
    /// may be any place, or none.
    near: Place,
}

/// A key, its value before and its value now.
pub(crate) type Changed<'a, K, V> = (&'a K, [Option<&'a V>; 2]);

/// Where an entry is.
#[derive(Clone, Copy, Default)]
struct Place {
    group: usize,
    chunk: usize,
    index: usize,
}

/// Entries in key order, from some place on.
struct Entries<'a, K, V> {
    entries: std::slice::Iter<'a, (K, Arc<V>)>,
    /// Of the same group.
    chunks: std::slice::Iter<'a, Arc<Chunk<K, V>>>,
    groups: std::slice::Iter<'a, Arc<Group<K, V>>>,
}

impl<'a, K, V> Iterator for Entries<'a, K, V> {
    type Item = (&'a K, &'a V);

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some((key, value)) = self.entries.next() {
                return Some((key, value.as_ref()));
            }
            match self.chunks.next() {
                Some(chunk) => self.entries = chunk.iter(),
                None => self.chunks = self.groups.next()?.iter(),
            }
        }
    }
}

impl<K, V> Table<K, V> {
    /// An empty table.
    #[must_use]
    pub fn new() -> Self {
        Self { groups: Arc::new(Vec::new()), len: 0, near: Place::default() }
    }

    /// How many entries it has.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// All entries in key order.
    pub fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        self.entries_from(Place::default())
    }

    fn entries_from(&self, from: Place) -> Entries<'_, K, V> {
        let chunks = self.groups.get(from.group).map_or(&[][..], |group| &group[..]);
        let entries = chunks.get(from.chunk).and_then(|chunk| chunk.get(from.index..)).unwrap_or(&[]);
        let (chunks, groups) = (chunks.get(from.chunk + 1..), self.groups.get(from.group + 1..));
        Entries { entries: entries.iter(), chunks: chunks.unwrap_or(&[]).iter(), groups: groups.unwrap_or(&[]).iter() }
    }

    /// All keys in order.
    pub fn keys(&self) -> impl Iterator<Item = &K> {
        self.iter().map(|(key, _)| key)
    }

    /// The lowest key and its value.
    #[must_use]
    pub fn first(&self) -> Option<(&K, &V)> {
        self.iter().next()
    }
}

/// The lowest key of a chunk.
fn begin_of_chunk<K, V>(chunk: &Chunk<K, V>) -> Option<&K> {
    chunk.first().map(|(key, _)| key)
}

/// The lowest key of a group.
fn begin_of_group<K, V>(group: &Group<K, V>) -> Option<&K> {
    group.first().and_then(|chunk| begin_of_chunk(chunk))
}

/// The last of some pieces that begins at or before a key, or the first one.
fn piece_of<K: Ord, T>(pieces: &[Arc<T>], begin: impl Fn(&T) -> Option<&K>, key: &K) -> usize {
    pieces.partition_point(|piece| begin(piece).is_some_and(|begin| begin <= key)).saturating_sub(1)
}

/// Those pieces of one table that another one does not share.
fn apart<'a, K: Ord, T>(
    mine: impl Iterator<Item = &'a Arc<T>>,
    others: impl Iterator<Item = &'a Arc<T>>,
    begin: impl Fn(&T) -> Option<&K>,
) -> Vec<&'a Arc<T>> {
    let mut others = others.peekable();
    let mut apart = Vec::new();
    // Pieces ascend by their first key, and a shared one begins with the same key in both.
    for piece in mine {
        if others.next_if(|other| Arc::ptr_eq(other, piece)).is_some() {
            continue;
        }
        while others.next_if(|other| begin(other) < begin(piece)).is_some() {}
        if !others.peek().is_some_and(|other| Arc::ptr_eq(other, piece)) {
            apart.push(piece);
        }
    }
    apart
}

impl<K: Ord, V> Table<K, V> {
    /// Where `key` is or would be, but for the index: the chunk that holds it if any does.
    fn chunk_of(&self, key: &K) -> Place {
        let group = piece_of(&self.groups, begin_of_group, key);
        let chunk = self.groups.get(group).map_or(0, |chunks| piece_of(chunks, begin_of_chunk, key));
        Place { group, chunk, index: 0 }
    }

    fn chunk(&self, at: Place) -> Option<&Chunk<K, V>> {
        self.groups.get(at.group)?.get(at.chunk).map(Arc::as_ref)
    }

    fn locate(&self, key: &K) -> Option<Place> {
        let nearby = self.chunk(self.near).and_then(|entries| entries.get(self.near.index..)).unwrap_or(&[]);
        if let Some(next) = nearby.iter().take(2).position(|(known, _)| known == key) {
            return Some(Place { index: self.near.index + next, ..self.near });
        }
        let chunk = self.chunk_of(key);
        let index = self.chunk(chunk)?.binary_search_by(|(known, _)| known.cmp(key)).ok()?;
        Some(Place { index, ..chunk })
    }

    /// The value of a key.
    #[must_use]
    pub fn get(&self, key: &K) -> Option<&V> {
        let place = self.locate(key)?;
        self.chunk(place)?.get(place.index).map(|(_, value)| value.as_ref())
    }

    /// The values of these keys: quick where they are in order and mostly side by side, because each is looked for from the one before.
    pub fn each<'a, 'b, I>(&'a self, keys: I) -> impl Iterator<Item = Option<&'a V>> + use<'a, 'b, I, K, V>
    where
        I: Iterator<Item = &'b K>,
        K: 'b,
    {
        let mut keys = keys.peekable();
        let first = keys.peek().map_or(Bound::Unbounded, |first| Bound::Included(*first));
        let mut entries = self.entries_in(first).peekable();
        keys.map(move |key| {
            let is_it = |(known, _): &(&K, &V)| *known == key;
            // Mostly it is the next one.
            if let Some((_, value)) = entries.next_if(is_it) {
                return Some(value);
            }
            let passed = (0..EACH_PASSED_MAX).take_while(|_| entries.next_if(|(known, _)| *known < key).is_some());
            let _passed = passed.count();
            if !entries.peek().is_some_and(is_it) {
                entries = self.entries_in(Bound::Included(key)).peekable();
            }
            entries.next_if(is_it).map(|(_, value)| value)
        })
    }

    /// Whether it has this key.
    #[must_use]
    pub fn contains(&self, key: &K) -> bool {
        self.locate(key).is_some()
    }

    /// Keys that are in only one of two tables or whose values were written to since one was cloned from the other, in order, each with its value before
    /// and now. Costs what differs, and a look at every group if anything was written.
    pub fn changed<'a>(&'a self, before: &'a Self) -> Vec<Changed<'a, K, V>> {
        if Arc::ptr_eq(&self.groups, &before.groups) {
            return Vec::new();
        }
        let groups = |one: &'a Self, other: &'a Self| apart(one.groups.iter(), other.groups.iter(), begin_of_group);
        let (mine, theirs) = (groups(self, before), groups(before, self));
        // A chunk that both share is in groups that they do not share, or all of its group is shared.
        let chunks = |one: &[&'a Arc<Group<K, V>>], other: &[&'a Arc<Group<K, V>>]| {
            let all = |groups: &[&'a Arc<Group<K, V>>]| {
                groups.iter().copied().flat_map(|group| group.iter()).collect::<Vec<_>>()
            };
            apart(all(one).into_iter(), all(other).into_iter(), begin_of_chunk)
        };
        let (mine, theirs) = (chunks(&mine, &theirs), chunks(&theirs, &mine));
        let mut mine = mine.into_iter().flat_map(|chunk| chunk.iter()).peekable();
        let mut theirs = theirs.into_iter().flat_map(|chunk| chunk.iter()).peekable();
        let mut changed = Vec::new();
        loop {
            let order = match (mine.peek(), theirs.peek()) {
                (Some((mine, _)), Some((theirs, _))) => mine.cmp(theirs),
                (Some(_), None) => Ordering::Less,
                (None, Some(_)) => Ordering::Greater,
                (None, None) => return changed,
            };
            let my = if order.is_le() { mine.next() } else { None };
            let their = if order.is_ge() { theirs.next() } else { None };
            match (my, their) {
                (Some((_, my)), Some((_, their))) if Arc::ptr_eq(my, their) => {}
                (my, their) => {
                    let values = [their, my].map(|of| of.map(|(_, value)| value.as_ref()));
                    changed.extend(my.or(their).map(|(key, _)| (key, values)));
                }
            }
        }
    }

    /// Entries from `from` on, in key order.
    pub fn range_from<'a>(&'a self, from: Bound<&K>) -> impl Iterator<Item = (&'a K, &'a V)> + use<'a, K, V> {
        self.entries_in(from)
    }

    fn entries_in(&self, from: Bound<&K>) -> Entries<'_, K, V> {
        let place = match from {
            Bound::Unbounded => Place::default(),
            Bound::Included(key) | Bound::Excluded(key) => {
                let chunk = self.chunk_of(key);
                let is_before = |known: &K| if matches!(from, Bound::Excluded(_)) { known <= key } else { known < key };
                let entries = self.chunk(chunk).map_or(&[][..], |entries| &entries[..]);
                Place { index: entries.partition_point(|(known, _)| is_before(known)), ..chunk }
            }
        };
        self.entries_from(place)
    }
}

impl<K: Ord + Clone, V: Clone> Table<K, V> {
    /// The chunk at a place, and what is around it, to be changed.
    fn chunk_mut(&mut self, at: Place) -> Option<&mut Chunk<K, V>> {
        let group = Arc::make_mut(&mut self.groups).get_mut(at.group)?;
        Arc::make_mut(group).get_mut(at.chunk).map(Arc::make_mut)
    }

    /// The value of a key, to be changed.
    pub fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        let place = self.locate(key)?;
        self.near = place;
        self.chunk_mut(place)?.get_mut(place.index).map(|(_, value)| Arc::make_mut(value))
    }

    /// Changes the values of these keys, one after the other; nothing of those that are not there. Quick where they stand side by side: what is around them
    /// is taken in hand once for each chunk.
    pub fn change_each<'b>(&mut self, keys: impl Iterator<Item = &'b K>, mut to: impl FnMut(&'b K, &mut V))
    where
        K: 'b,
    {
        let mut keys = keys.peekable();
        while let Some(key) = keys.next() {
            let Some(place) = self.locate(key) else { continue };
            let Some(entries) = self.chunk_mut(place).and_then(|chunk| chunk.get_mut(place.index..)) else { continue };
            let (mut key, mut passed) = (Some(key), 0);
            for (known, value) in entries {
                let Some(key) = key.take().or_else(|| keys.next_if(|next| *next == known)) else { break };
                to(key, Arc::make_mut(value));
                passed += 1;
            }
            self.near = Place { index: (place.index + passed).saturating_sub(1), ..place };
        }
    }

    /// Sets a key's value; whether the key is new.
    pub fn insert(&mut self, key: K, value: V) -> bool {
        let at = self.chunk_of(&key);
        let Some(chunk) = self.chunk_mut(at) else {
            self.groups = Arc::new(vec![Arc::new(vec![Arc::new(vec![(key, Arc::new(value))])])]);
            self.len = 1;
            return true;
        };
        let index = match chunk.binary_search_by(|(known, _)| known.cmp(&key)) {
            Ok(index) => {
                chunk[index].1 = Arc::new(value);
                return false;
            }
            Err(index) => index,
        };
        chunk.insert(index, (key, Arc::new(value)));
        let upper = (chunk.len() > CHUNK_LEN_MAX).then(|| chunk.split_off(cut(CHUNK_LEN_MAX, index)));
        if let Some(upper) = upper {
            self.insert_chunk(at, upper);
        }
        self.len += 1;
        true
    }

    /// Puts in a chunk that follows the one at a place.
    fn insert_chunk(&mut self, at: Place, chunk: Chunk<K, V>) {
        let groups = Arc::make_mut(&mut self.groups);
        let group = Arc::make_mut(&mut groups[at.group]);
        group.insert(at.chunk + 1, Arc::new(chunk));
        if group.len() > GROUP_LEN_MAX {
            let upper = group.split_off(cut(GROUP_LEN_MAX, at.chunk + 1));
            groups.insert(at.group + 1, Arc::new(upper));
        }
    }

    /// Takes a key out; whether it was there.
    pub fn remove(&mut self, key: &K) -> bool {
        self.take(key).is_some()
    }

    /// Takes a key's value out.
    pub fn take(&mut self, key: &K) -> Option<V> {
        let at = self.locate(key)?;
        let groups = Arc::make_mut(&mut self.groups);
        let group = Arc::make_mut(groups.get_mut(at.group)?);
        let chunk = Arc::make_mut(group.get_mut(at.chunk)?);
        let (_, value) = chunk.remove(at.index);
        if chunk.is_empty() {
            group.remove(at.chunk);
        }
        if group.is_empty() {
            groups.remove(at.group);
        }
        self.len -= 1;
        Some(Arc::unwrap_or_clone(value))
    }
}

/// Where a piece is cut in two that has become one longer than it may be, by what was put in where: in the middle, but what grows at its end is full when it
/// is cut, because it goes on to grow there.
fn cut(len_max: usize, put_at: usize) -> usize {
    if put_at == len_max { len_max } else { len_max / 2 }
}

impl<K, V> Default for Table<K, V> {
    fn default() -> Self {
        Self::new()
    }
}

impl<K, V> Clone for Table<K, V> {
    fn clone(&self) -> Self {
        Self { groups: Arc::clone(&self.groups), len: self.len, near: self.near }
    }
}

/// Equal when the entries are: how they happen to be cut into pieces does not count.
impl<K: PartialEq, V: PartialEq> PartialEq for Table<K, V> {
    fn eq(&self, other: &Self) -> bool {
        self.len == other.len && self.iter().eq(other.iter())
    }
}

impl<K: fmt::Debug, V: fmt::Debug> fmt::Debug for Table<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

impl<C, K: Encode<C>, V: Encode<C>> Encode<C> for Table<K, V> {
    fn encode<W: Write>(&self, e: &mut Encoder<W>, ctx: &mut C) -> Result<(), minicbor::encode::Error<W::Error>> {
        e.map(self.len as u64)?;
        for (key, value) in self.iter() {
            key.encode(e, ctx)?;
            value.encode(e, ctx)?;
        }
        Ok(())
    }
}

impl<'b, C, K: Decode<'b, C> + Ord + Clone, V: Decode<'b, C> + Clone> Decode<'b, C> for Table<K, V> {
    fn decode(d: &mut Decoder<'b>, ctx: &mut C) -> Result<Self, minicbor::decode::Error> {
        let len = d.map()?.ok_or_else(|| minicbor::decode::Error::message("a table has a known length"))?;
        let mut table = Self::new();
        for _ in 0..len {
            let key = K::decode(d, ctx)?;
            table.insert(key, V::decode(d, ctx)?);
        }
        Ok(table)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;
    use std::collections::{BTreeMap, BTreeSet};

    proptest! {
        #[test]
        fn behaves_like_a_btree_map_and_never_changes_a_clone(actions in proptest::collection::vec((0u16..300, 0u8..4, 0u32..9), 0..800)) {
            let (mut table, mut map) = (Table::new(), BTreeMap::new());
            let mut frozen = (table.clone(), map.clone());
            for (index, (key, action, value)) in actions.into_iter().enumerate() {
                match action {
                    0 | 1 => prop_assert_eq!(table.insert(key, value), map.insert(key, value).is_none()),
                    2 => prop_assert_eq!(table.remove(&key), map.remove(&key).is_some()),
                    _ => {
                        if let Some(v) = table.get_mut(&key) { *v += 1; }
                        if let Some(v) = map.get_mut(&key) { *v += 1; }
                    }
                }
                if index % 97 == 0 {
                    prop_assert!(frozen.0.iter().eq(frozen.1.iter()));
                    frozen = (table.clone(), map.clone());
                }
                prop_assert_eq!(table.get(&key), map.get(&key));
                prop_assert_eq!(table.len(), map.len());
                let changed = table.changed(&frozen.0);
                prop_assert!(changed.iter().all(|(key, values)| *values == [frozen.1.get(key), map.get(key)]));
                let changed: BTreeSet<u16> = changed.into_iter().map(|(key, _)| *key).collect();
                prop_assert_eq!(&changed, &frozen.0.changed(&table).into_iter().map(|(key, _)| *key).collect());
                for key in map.keys().chain(frozen.1.keys()) {
                    // A value that was written to may be the same again; one that is another was written to.
                    prop_assert!(map.get(key) == frozen.1.get(key) || changed.contains(key));
                }
                prop_assert!(changed.len() <= 2 * (index % 97 + 1));
            }
            prop_assert!(table.iter().eq(map.iter()));
            for keys in [(0u16..310).collect::<Vec<_>>(), (40..300).step_by(23).chain([7, 7, 280, 3]).collect(), Vec::new()] {
                prop_assert!(table.each(keys.iter()).eq(keys.iter().map(|key| map.get(key))));
            }
            let (kept, mut each) = (table.clone(), table.clone());
            for keys in [(0u16..310).collect::<Vec<_>>(), (3..300).step_by(5).chain([8, 8, 9, 2]).collect()] {
                each.change_each(keys.iter(), |key, value| *value += 1 + u32::from(*key));
                let mut one_by_one = map.clone();
                keys.iter().for_each(|key| if let Some(value) = one_by_one.get_mut(key) { *value += 1 + u32::from(*key) });
                prop_assert!(each.iter().eq(one_by_one.iter()) && kept.iter().eq(map.iter()));
                prop_assert!(keys.iter().all(|key| each.get(key) == one_by_one.get(key)));
                each = kept.clone();
            }
            for from in [0u16, 7, 150, 299, 400] {
                prop_assert!(table.range_from(Bound::Included(&from)).eq(map.range(from..)));
                prop_assert!(table.range_from(Bound::Excluded(&from)).eq(map.range((Bound::Excluded(from), Bound::Unbounded))));
            }
            let bytes = events_schema::batch::to_bytes(&table);
            prop_assert_eq!(events_schema::batch::from_bytes::<Table<u16, u32>>(&bytes).unwrap(), table);
        }
    }
}
