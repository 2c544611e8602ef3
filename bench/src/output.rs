//! Where results go: to files, which are opened before a run, and to standard output.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use crate::{Error, Result};

/// The exit status when standard output was closed: that of a program that SIGPIPE ends.
pub const UNREAD: u8 = 128 + 13;

/// The open files that a program was asked to write.
pub struct Outputs {
    /// Where the figures go.
    pub json: Option<Output>,
    /// Where the drawing goes.
    pub plot: Option<Output>,
}

impl Outputs {
    /// Opens the files of `--json` and `--plot`.
    ///
    /// # Errors
    /// [`Error::Arguments`] for a file that can't be written.
    pub fn open(json: Option<&Path>, plot: Option<&Path>) -> Result<Self> {
        let json = json.map(|path| Output::open("--json", path)).transpose()?;
        let plot = plot.map(|path| Output::open("--plot", path)).transpose()?;
        Ok(Self { json, plot })
    }
}

/// An open file, or standard output for "-".
///
/// What the file held is kept until [`write`](Self::write). A file that did not exist before is removed again
/// if nothing is written.
#[must_use]
pub struct Output {
    path: PathBuf,
    /// `None` for standard output.
    file: Option<File>,
    is_removed_on_drop: bool,
}

impl Output {
    /// Opens the file given for `option`.
    ///
    /// # Errors
    /// [`Error::Arguments`] if it can't be written.
    pub fn open(option: &str, path: &Path) -> Result<Self> {
        if is_standard_output(path) {
            return Ok(Self { path: path.into(), file: None, is_removed_on_drop: false });
        }
        let new = OpenOptions::new().write(true).create_new(true).open(path);
        let is_new = new.is_ok();
        let opened = match new {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                OpenOptions::new().write(true).create(true).truncate(false).open(path)
            }
            other => other,
        };
        let file = opened.map_err(|why| {
            let remedy = "name a file in a folder that exists and that you may write to";
            Error::Arguments(format!("{option} {}: can't be written ({why}): {remedy}", path.display()))
        })?;
        Ok(Self { path: path.into(), file: Some(file), is_removed_on_drop: is_new })
    }

    /// Replaces what the file holds; prints to standard output.
    ///
    /// # Errors
    /// [`Error::Write`], and those of [`print()`].
    pub fn write(mut self, text: &str) -> Result<()> {
        let Some(file) = &mut self.file else { return print(text) };
        let is_file = file.metadata().is_ok_and(|metadata| metadata.is_file());
        let emptied = if is_file { file.set_len(0) } else { Ok(()) };
        let written = emptied.and_then(|()| file.write_all(text.as_bytes()));
        self.is_removed_on_drop = false;
        written.map_err(|error| Error::Write { path: self.path.clone(), why: error.to_string() })
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        if self.is_removed_on_drop {
            // An empty file that stays behind does no harm.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Whether a file name means standard output.
#[must_use]
pub fn is_standard_output(path: &Path) -> bool {
    path == Path::new("-")
}

/// Parses the name of a drawing's file.
///
/// # Errors
/// A text, unless it ends in `.svg`.
pub fn svg_file(name: &str) -> Result<PathBuf, String> {
    let file = PathBuf::from(name);
    let is_svg = file.extension().is_some_and(|ending| ending == "svg");
    if is_svg { Ok(file) } else { Err("drawings are SVG: give it a FILE.svg".into()) }
}

/// Prints to standard output and flushes.
///
/// # Errors
/// [`Error::Unread`] if standard output was closed, as by `| head`; [`Error::System`].
pub fn print(text: &str) -> Result<()> {
    let mut out = io::stdout().lock();
    let printed = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    printed.map_err(|error| match error.kind() {
        io::ErrorKind::BrokenPipe => Error::Unread,
        _ => Error::System { what: "can't print the results".into(), why: error },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_keeps_what_it_held_until_it_is_written() {
        let folder = tempfile::tempdir().unwrap();
        let (old, new) = (folder.path().join("old"), folder.path().join("new"));
        fs::write(&old, "of an earlier run").unwrap();
        let open = |path| Output::open("--json", path).unwrap();
        drop((open(&old), open(&new)));
        assert_eq!((fs::read_to_string(&old).unwrap().as_str(), new.exists()), ("of an earlier run", false));
        for path in [&old, &new] {
            open(path).write("figures").unwrap();
            assert_eq!(fs::read_to_string(path).unwrap(), "figures");
        }
    }

    #[test]
    fn what_can_not_be_written_is_refused_with_the_remedy() {
        let folder = tempfile::tempdir().unwrap();
        for path in [folder.path(), &folder.path().join("no/such.json"), Path::new("/proc/figures.json")] {
            let Err(Error::Arguments(line)) = Output::open("--json", path) else { panic!("{path:?}") };
            assert!(line.starts_with("--json /") && line.contains("folder that exists"), "{line}");
        }
    }

    #[test]
    fn drawings_are_svg() {
        assert_eq!(svg_file("a.svg"), Ok("a.svg".into()));
        for name in ["a.png", "a", "-", "svg"] {
            assert!(svg_file(name).unwrap_err().contains("FILE.svg"), "{name}");
        }
    }
}
