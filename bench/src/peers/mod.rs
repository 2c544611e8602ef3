//! The other libraries found on this machine.

mod gloo;
mod mpi;
mod numpy;
mod perftest;
mod printed;

use std::collections::HashSet;
use std::path::{Path, PathBuf};

pub use gloo::Gloo;
pub use mpi::{Mpi, Setting, find as find_mpi};
pub use numpy::{Dropped, Numpy, NumpyDrop};
pub use perftest::Perftest;
pub(crate) use printed::printed;

/// The wires that are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Wire {
    /// Memory that ranks of one host share.
    Shm,
    /// Sockets over loopback.
    Tcp,
}

impl Wire {
    /// The name in tables.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Shm => "shm",
            Self::Tcp => "tcp",
        }
    }

    /// The value of `UCX_TLS` for both sides.
    #[must_use]
    pub fn ucx_tls(self) -> &'static str {
        match self {
            Self::Shm => "shm,self",
            Self::Tcp => "tcp,self",
        }
    }
}

/// Where `bench/peers/install.sh` installs and builds: the folder in `BREVITY_PEERS`, otherwise the
/// `target/peers` of the current folder or of the nearest parent that has one.
#[must_use]
pub fn folder() -> PathBuf {
    let named = std::env::var_os("BREVITY_PEERS").map(PathBuf::from);
    named.or_else(|| nearest(Path::new(BUILT))).unwrap_or_else(|| BUILT.into())
}

const BUILT: &str = "target/peers";

/// The path in the current folder, or in the nearest parent that has such a file.
pub(crate) fn nearest(path: &Path) -> Option<PathBuf> {
    let present = std::env::current_dir().ok()?;
    present.ancestors().map(|folder| folder.join(path)).find(|found| found.exists())
}

/// The file of a program: the path itself if it has a folder, otherwise the first of that name in `PATH`.
#[must_use]
pub fn find_program(name: &Path) -> Option<PathBuf> {
    if name.components().count() > 1 {
        return name.is_file().then(|| name.to_owned());
    }
    find_programs(name).into_iter().next()
}

/// The files of that name in all folders of `PATH`, in order. A folder that is listed under two names counts
/// once.
fn find_programs(name: &Path) -> Vec<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut seen = HashSet::new();
    let folders = std::env::split_paths(&path)
        .filter(|folder| folder.canonicalize().is_ok_and(|real| seen.insert(real)));
    folders.map(|folder| folder.join(name)).filter(|file| file.is_file()).collect()
}
