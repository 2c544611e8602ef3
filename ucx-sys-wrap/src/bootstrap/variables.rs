//! Reads and parses single variables of the environment.

use std::ffi::OsString;
use std::time::Duration;

use crate::{Error, MAX_WORLD_SIZE, Rank, Result};

pub(super) const RANK: &str = "this process's number, from 0 to the world size minus one";
pub(super) const WORLD_SIZE: &str = "the number of ranks, from 1 to 1048576";

pub(super) const PORTS: &str = "first-last, two ports, as 20000-20100";

/// The variables that a lookup knows.
#[derive(Clone, Copy)]
pub(super) struct Variables<'a> {
    pub(super) lookup: &'a dyn Fn(&str) -> Option<OsString>,
}

impl Variables<'_> {
    pub(super) fn any(&self, names: &[&str]) -> bool {
        names.iter().any(|name| (self.lookup)(name).is_some())
    }

    pub(super) fn all(&self, names: &[&str]) -> bool {
        names.iter().all(|name| (self.lookup)(name).is_some())
    }

    pub(super) fn is(&self, name: &str, value: &str) -> bool {
        (self.lookup)(name).is_some_and(|found| found == value)
    }

    pub(super) fn number(&self, name: &str) -> Option<u32> {
        (self.lookup)(name)?.to_str()?.parse().ok()
    }

    pub(super) fn equal(&self, one: &str, other: &str) -> bool {
        self.number(one).is_some_and(|found| self.number(other) == Some(found))
    }

    /// The variable's value, `None` when it is not set.
    pub(super) fn read<T>(
        &self,
        variable: &'static str,
        expected: &'static str,
        parse: impl Fn(&str) -> Option<T>,
    ) -> Result<Option<T>> {
        let Some(value) = (self.lookup)(variable) else { return Ok(None) };
        match value.to_str().and_then(parse) {
            Some(parsed) => Ok(Some(parsed)),
            None => Err(Error::Environment { variable, found: format!("{value:?}"), expected }),
        }
    }

    pub(super) fn required<T>(
        &self,
        variable: &'static str,
        expected: &'static str,
        parse: impl Fn(&str) -> Option<T>,
    ) -> Result<T> {
        self.read(variable, expected, parse)?.ok_or_else(|| not_set(variable, expected))
    }

    /// A rank and a world size that fit together.
    pub(super) fn rank_of(&self, rank_name: &'static str, size_name: &'static str) -> Result<(Rank, u32)> {
        let valid = |text: &str| text.parse().ok().filter(|size| (1..=MAX_WORLD_SIZE).contains(size));
        let world_size = self.required(size_name, WORLD_SIZE, valid)?;
        let below = |text: &str| text.parse().ok().filter(|&rank| rank < world_size).map(Rank);
        Ok((self.required(rank_name, RANK, below)?, world_size))
    }
}

pub(super) fn not_set(variable: &'static str, expected: &'static str) -> Error {
    Error::Environment { variable, found: "not set".into(), expected }
}

pub(super) fn seconds(text: &str) -> Option<Duration> {
    let timeout = Duration::try_from_secs_f64(text.parse().ok()?).ok()?;
    (!timeout.is_zero()).then_some(timeout)
}

pub(super) fn non_empty(text: &str) -> Option<String> {
    (!text.is_empty()).then(|| text.to_owned())
}

/// The values that [`switch`] accepts, for messages.
pub const SWITCH: &str = "1 or on, 0 or off";

/// Parses the value of a variable that turns something on or off.
#[must_use]
pub fn switch(text: &str) -> Option<bool> {
    match text {
        "0" | "off" => Some(false),
        "1" | "on" => Some(true),
        _ => None,
    }
}
