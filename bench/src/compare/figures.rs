//! The figures as JSON, and the drawing made from it.

use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::pairs::Comparison;
use super::plot::{self, Point};
use crate::record::{self, Circumstances};
use crate::{Error, Result};

/// The JSON of the contract, and more fields.
#[derive(Serialize)]
struct Figures<'a> {
    #[serde(flatten)]
    circumstances: &'a Circumstances,
    pairs: &'a [Comparison],
}

/// The figures as JSON.
///
/// # Errors
/// The same as for [`record::to_json`].
pub fn to_json(circumstances: &Circumstances, pairs: &[Comparison]) -> Result<String> {
    record::to_json(&Figures { circumstances, pairs })
}

/// The parts of the JSON that are drawn.
#[derive(Deserialize)]
struct Drawn {
    date: String,
    machine: String,
    commit: String,
    command: String,
    pairs: Vec<Point>,
}

/// Draws the figures in the file `path` and writes the drawing beside it.
///
/// # Errors
/// [`Error::Arguments`] if the file has no figures; [`Error::Write`].
pub fn redraw(path: &Path) -> Result<()> {
    let refuse =
        |why: String| Error::Arguments(format!("{}: no figures of a comparison ({why})", path.display()));
    let text = fs::read_to_string(path).map_err(|error| refuse(error.to_string()))?;
    record::write(&path.with_extension("svg"), &drawing(&text).map_err(refuse)?)
}

/// The drawing of the figures in a JSON text.
///
/// # Errors
/// A text, if these are no figures or something can't be drawn.
pub fn drawing(json: &str) -> Result<String, String> {
    let drawn: Drawn = serde_json::from_str(json).map_err(|error| error.to_string())?;
    let Drawn { date, machine, commit, command, pairs } = drawn;
    let head = [
        &*format!("{command}: time of ours / theirs, medians and intervals"),
        &*format!("{date}, {commit}, {machine}"),
    ];
    plot::svg(&head, &pairs)
}
