//! How every comparison begins and ends: where its figures go, and what is kept of it.

use std::path::{Path, PathBuf};

use super::{figures, namespace};
use crate::output::{Output, Outputs};
use crate::peers::nearest;
use crate::record::{self, Circumstances, RECORD, Transcript};
use crate::{Error, Result};

/// A run in a network namespace of its own.
pub(crate) struct Opening {
    json: Option<Output>,
    /// The path of that file.
    path: Option<PathBuf>,
    /// Where the run is kept, if it is.
    folder: Option<PathBuf>,
}

impl Opening {
    /// Opens the file for the figures, and the folder of records if the run is kept, and enters the
    /// namespace, for which the program may begin anew.
    ///
    /// # Errors
    /// [`Error::Arguments`] for what can't be written.
    pub(crate) fn enter(json: Option<&Path>, is_kept: bool) -> Result<Self> {
        let Outputs { json: output, .. } = Outputs::open(json, None)?;
        let folder = is_kept.then(|| nearest(Path::new(RECORD)).unwrap_or_else(|| RECORD.into()));
        if let Some(folder) = &folder {
            record::prepare(folder).map_err(|error| Error::Arguments(format!("--record: {error}")))?;
        }
        namespace::enter()?;
        Ok(Self { json: output, path: json.map(Path::to_owned), folder })
    }

    /// The circumstances of a run with these peers.
    pub(crate) fn circumstances(&self, peers: Vec<String>) -> Circumstances {
        let congestion_control = Some(namespace::congestion_control());
        Circumstances { congestion_control, ..Circumstances::now("bench/compare", peers) }
    }

    /// An empty transcript.
    pub(crate) fn transcript(&self) -> Transcript {
        Transcript::beside(self.path.as_deref())
    }

    /// Keeps a run under `name`, if runs are kept: its figures, its transcript, and its drawing if it has
    /// one. Returns the line that says so.
    ///
    /// # Errors
    /// [`Error::Write`], and for figures that can't be drawn.
    pub(crate) fn keep(
        &self,
        circumstances: &Circumstances,
        name: &str,
        (figures, said): (&str, &Transcript),
        is_drawn: bool,
    ) -> Result<Option<String>> {
        let Some(folder) = &self.folder else { return Ok(None) };
        let draw = || figures::drawing(figures).map_err(|why| Error::contestant("the drawing", why));
        let drawing = if is_drawn { Some(draw()?) } else { None };
        let files = [("json", figures), ("txt", said.text())].into_iter();
        let files: Vec<_> = files.chain(drawing.as_deref().map(|drawing| ("svg", drawing))).collect();
        record::keep(circumstances, (folder, name), &files).map(Some)
    }

    /// Writes the figures where they were asked for.
    ///
    /// # Errors
    /// [`Error::Write`].
    pub(crate) fn write(&mut self, figures: &str) -> Result<()> {
        self.json.take().map_or(Ok(()), |output| output.write(figures))
    }
}
