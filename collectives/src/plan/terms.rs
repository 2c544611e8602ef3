//! What decides which algorithms a job takes: rank 0's settings count for all ranks.

use std::fmt;

use super::{Machine, Wishes};
use crate::group::Settings;

/// The part of the [`Settings`] that decides which algorithms are taken.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Terms {
    pub(crate) any_order: bool,
    pub(crate) wishes: Wishes,
    pub(crate) segment_bytes: usize,
    pub(crate) machine: Option<Machine>,
}

/// The segments that are accepted.
pub(crate) const SEGMENTS: std::ops::RangeInclusive<usize> = 64..=1 << 30;

impl Terms {
    pub(crate) fn of(settings: &Settings) -> Self {
        let Settings { any_order, wishes, segment_bytes, machine, .. } = *settings;
        Self { any_order, wishes, segment_bytes, machine }
    }

    /// The settings with these terms.
    pub(crate) fn put_into(self, settings: &mut Settings) {
        let Self { any_order, wishes, segment_bytes, machine } = self;
        *settings = Settings { any_order, wishes, segment_bytes, machine, ..*settings };
    }

    /// On the wire: any order 1, segment 8, wishes 1 each, then the machine, if there is one.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![self.any_order.into()];
        bytes.extend((self.segment_bytes as u64).to_le_bytes());
        bytes.extend(self.wishes.encode());
        bytes.extend(self.machine.iter().flat_map(Machine::encode));
        bytes
    }

    /// `None` for bytes that [`encode`](Self::encode) does not make of valid settings.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let (order, rest) = bytes.split_first()?;
        let (segment, rest) = rest.split_first_chunk::<8>()?;
        let (wishes, machine) = rest.split_first_chunk()?;
        let segment = usize::try_from(u64::from_le_bytes(*segment)).ok()?;
        Some(Self {
            any_order: match order {
                0 => false,
                1 => true,
                _ => return None,
            },
            wishes: Wishes::decode(wishes)?,
            segment_bytes: Some(segment).filter(|segment| SEGMENTS.contains(segment))?,
            machine: if machine.is_empty() { None } else { Some(Machine::decode(machine)?) },
        })
    }

    /// What this rank was given otherwise than rank 0, whose terms `first` are: a line for its user, unless
    /// it was given nothing of that kind.
    pub(crate) fn differences(&self, first: &Self) -> Option<String> {
        let usual = Self::of(&Settings::default());
        let mut lines: Vec<String> = Vec::new();
        let mut add = |is_given: bool, name: &str, own: &dyn fmt::Display, theirs: &dyn fmt::Display| {
            if is_given {
                lines.push(format!("{name} {own}, but on rank 0 {theirs}"));
            }
        };
        let differs = self.any_order != first.any_order && self.any_order != usual.any_order;
        add(differs, "any_order", &self.any_order, &first.any_order);
        let differs = self.wishes != first.wishes && self.wishes != usual.wishes;
        let none = |text: String| if text.is_empty() { "none".to_owned() } else { text };
        let (own, theirs) = (none(self.wishes.to_string()), none(first.wishes.to_string()));
        add(differs, "algorithm", &own, &theirs);
        let differs = self.segment_bytes != first.segment_bytes && self.segment_bytes != usual.segment_bytes;
        add(differs, "segment", &self.segment_bytes, &first.segment_bytes);
        if let Some(own) = self.machine.filter(|_| self.machine != first.machine) {
            let theirs = first.machine.map_or("none".to_owned(), |machine| machine.to_string());
            add(true, "machine", &own, &theirs);
        }
        (!lines.is_empty()).then(|| lines.join("; "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn terms() -> Terms {
        let wishes = "all-reduce:ring,gather:linear".parse().unwrap();
        Terms { any_order: true, wishes, segment_bytes: 4096, machine: Some(Machine::uniform(1e-3, 1e-8)) }
    }

    #[test]
    fn terms_travel_as_bytes() {
        for terms in [terms(), Terms { machine: None, ..terms() }, Terms::of(&Settings::default())] {
            let bytes = terms.encode();
            assert_eq!(Terms::decode(&bytes), Some(terms));
            assert!((0..bytes.len()).all(|end| Terms::decode(&bytes[..end]) != Some(terms)));
            for place in 0..bytes.len() {
                // Nothing panics, and nothing comes that could not have been sent.
                for byte in [0, 2, 0x7f, 0xff] {
                    let mut bytes = bytes.clone();
                    bytes[place] = byte;
                    assert!(Terms::decode(&bytes).is_none_or(|found| found.encode() == bytes));
                }
            }
        }
        assert_eq!(Terms::decode(&[]), None);
    }

    #[test]
    fn only_what_was_given_is_a_difference() {
        let usual = Terms::of(&Settings::default());
        assert_eq!(usual.differences(&terms()), None, "nothing was given");
        assert_eq!(terms().differences(&terms()), None);
        let text = terms().differences(&usual).unwrap();
        assert!(
            text.starts_with("any_order true, but on rank 0 false; algorithm all-reduce:ring,"),
            "{text}"
        );
        assert!(text.contains("segment 4096, but on rank 0 524288; machine inside:1000,"), "{text}");
    }
}
