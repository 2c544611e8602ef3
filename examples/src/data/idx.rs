//! Reads the IDX files of MNIST: a big-endian header (magic number, one length a dimension), then bytes.
//!
//! Everything is checked before use: the magic number, the dimensions, the file's length against them, each
//! label, and the number of images against the number of labels.

use super::{Dataset, Split, normalise};
use crate::Error;
use std::fs::File;
use std::io::{BufReader, ErrorKind, Read};
use std::path::{Path, PathBuf};

const IMAGES_MAGIC: u32 = 0x0000_0803;
const LABELS_MAGIC: u32 = 0x0000_0801;
const CLASSES: usize = 10;

/// The largest file accepted, in bytes. It limits the memory that a header can make the program allocate.
const MAX_FILE_BYTES: u64 = 1 << 30;

/// Reads the four MNIST files from `folder`, each plain or with `.gz`, and normalises them.
///
/// # Errors
/// One of the data errors of [`Error`], naming the file, what was found and what was expected.
pub fn load(folder: &Path) -> Result<Dataset, Error> {
    if !folder.is_dir() {
        return Err(Error::MissingFolder { folder: folder.to_owned() });
    }
    let (mut train, features) = read_split(folder, "train")?;
    let (mut test, test_features) = read_split(folder, "t10k")?;
    if features != test_features {
        return Err(Error::Dimension {
            file: folder.join("t10k-images-idx3-ubyte"),
            what: "pixels per image",
            found: test_features as u32,
            expected: format!("{features} as in the training images"),
        });
    }
    normalise(&mut train.values, &mut test.values);
    Ok(Dataset { train, test, features, classes: CLASSES, name: "MNIST" })
}

fn read_split(folder: &Path, prefix: &str) -> Result<(Split, usize), Error> {
    let images = read_images(&folder.join(format!("{prefix}-images-idx3-ubyte")))?;
    let labels = read_labels(&folder.join(format!("{prefix}-labels-idx1-ubyte")))?;
    if images.count != labels.values.len() {
        return Err(Error::Dimension {
            file: labels.file,
            what: "label count",
            found: labels.values.len() as u32,
            expected: format!("{} as in {}", images.count, images.file.display()),
        });
    }
    let split =
        Split { values: images.pixels.iter().map(|&p| f32::from(p)).collect(), labels: labels.values };
    Ok((split, images.features))
}

struct Images {
    file: PathBuf,
    count: usize,
    features: usize,
    pixels: Vec<u8>,
}

struct Labels {
    file: PathBuf,
    values: Vec<u32>,
}

fn read_images(path: &Path) -> Result<Images, Error> {
    let (file, mut bytes) = read_bytes(path)?;
    let [count, rows, columns] = header(&file, &bytes, IMAGES_MAGIC, "images")?;
    for (what, found) in [("image count", count), ("row count", rows), ("column count", columns)] {
        if found == 0 {
            return Err(Error::Dimension { file, what, found, expected: "at least 1".into() });
        }
    }
    let features = u64::from(rows) * u64::from(columns);
    check_length(&file, &bytes, 16, features.checked_mul(u64::from(count)))?;
    let pixels = bytes.split_off(16);
    Ok(Images { file, count: count as usize, features: features as usize, pixels })
}

fn read_labels(path: &Path) -> Result<Labels, Error> {
    let (file, bytes) = read_bytes(path)?;
    let [count] = header(&file, &bytes, LABELS_MAGIC, "labels")?;
    check_length(&file, &bytes, 8, Some(u64::from(count)))?;
    let labels = &bytes[8..];
    match labels.iter().position(|&label| usize::from(label) >= CLASSES) {
        Some(index) => Err(Error::Label { file, found: labels[index], index, classes: CLASSES }),
        None => Ok(Labels { file, values: labels.iter().map(|&l| u32::from(l)).collect() }),
    }
}

/// Reads `path`, or `path.gz` if there is no such file; also returns which it was.
fn read_bytes(path: &Path) -> Result<(PathBuf, Vec<u8>), Error> {
    let mut compressed = path.as_os_str().to_owned();
    compressed.push(".gz");
    let compressed = PathBuf::from(compressed);
    let mut bytes = Vec::new();
    let (file, result) = match File::open(path) {
        Ok(source) => (path.to_owned(), source.take(MAX_FILE_BYTES).read_to_end(&mut bytes)),
        Err(error) if error.kind() == ErrorKind::NotFound => match File::open(&compressed) {
            Ok(source) => {
                let decoder = flate2::read::MultiGzDecoder::new(BufReader::new(source));
                (compressed, decoder.take(MAX_FILE_BYTES).read_to_end(&mut bytes))
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {
                return Err(Error::MissingFile { file: path.to_owned() });
            }
            Err(error) => (compressed, Err(error)),
        },
        Err(error) => (path.to_owned(), Err(error)),
    };
    match result {
        Ok(_) => Ok((file, bytes)),
        Err(source) => Err(Error::File { file, action: "read", source }),
    }
}

/// The `N` lengths after the magic number.
fn header<const N: usize>(
    file: &Path,
    bytes: &[u8],
    expected: u32,
    what: &'static str,
) -> Result<[u32; N], Error> {
    let (words, _) = bytes.as_chunks::<4>();
    let found = words.first().map_or(0, |word| u32::from_be_bytes(*word));
    if !words.is_empty() && found != expected {
        return Err(Error::Magic { file: file.to_owned(), found, expected, what });
    }
    if words.len() <= N {
        return Err(Error::Length {
            file: file.to_owned(),
            found: bytes.len() as u64,
            expected: 4 * (N as u64 + 1),
        });
    }
    Ok(std::array::from_fn(|i| u32::from_be_bytes(words[i + 1])))
}

fn check_length(file: &Path, bytes: &[u8], header: u64, body: Option<u64>) -> Result<(), Error> {
    let expected = body.and_then(|body| body.checked_add(header)).unwrap_or(u64::MAX);
    let found = bytes.len() as u64;
    if found == expected {
        return Ok(());
    }
    Err(Error::Length { file: file.to_owned(), found, expected })
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::{Compression, write::GzEncoder};
    use std::fs;
    use std::io::Write;
    use tempfile::TempDir;

    fn images(count: u32, rows: u32, columns: u32) -> Vec<u8> {
        let mut bytes = Vec::new();
        for word in [IMAGES_MAGIC, count, rows, columns] {
            bytes.extend(word.to_be_bytes());
        }
        bytes.extend((0..count * rows * columns).map(|i| (i * 37 % 256) as u8));
        bytes
    }

    fn labels(values: &[u8]) -> Vec<u8> {
        let mut bytes = LABELS_MAGIC.to_be_bytes().to_vec();
        bytes.extend((values.len() as u32).to_be_bytes());
        bytes.extend(values);
        bytes
    }

    fn gz(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    /// A folder with a valid set: 5 training images and 2 test images of 3x2 pixels.
    fn folder() -> TempDir {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, bytes: &[u8]| fs::write(folder.path().join(name), bytes).unwrap();
        write("train-images-idx3-ubyte", &images(5, 3, 2));
        write("train-labels-idx1-ubyte", &labels(&[0, 9, 3, 3, 1]));
        write("t10k-images-idx3-ubyte.gz", &gz(&images(2, 3, 2)));
        write("t10k-labels-idx1-ubyte.gz", &gz(&labels(&[4, 5])));
        folder
    }

    /// The error message for a folder with this one file replaced.
    fn line_with(name: &str, bytes: &[u8]) -> String {
        let folder = folder();
        fs::write(folder.path().join(name), bytes).unwrap();
        let error = load(folder.path()).unwrap_err();
        assert_eq!(error.exit_status(), 2);
        let line = error.to_string();
        assert!(line.contains(name) && !line.contains('\n'), "{line}");
        line
    }

    #[test]
    fn plain_and_compressed_files_are_read() {
        let folder = folder();
        let set = load(folder.path()).unwrap();
        assert_eq!((set.features, set.classes), (6, 10));
        assert_eq!(set.train.labels, [0, 9, 3, 3, 1]);
        assert_eq!(set.test.labels, [4, 5]);
        assert_eq!((set.train.values.len(), set.test.values.len()), (30, 12));
        // Both files start with the same pixels, and normalising keeps their order.
        assert_eq!(set.train.values[..12], set.test.values[..]);
        assert!(set.train.values[1] > set.train.values[0]);
    }

    #[test]
    fn truncated_and_overlong_files_are_refused() {
        let good = images(5, 3, 2);
        let name = "train-images-idx3-ubyte";
        for length in [0, 3, 4, 15, 16, 45] {
            let line = line_with(name, &good[..length]);
            assert!(line.contains(&format!("{length} bytes, expected ")), "{line}");
        }
        assert!(line_with(name, &[&good[..], b"x"].concat()).contains("47 bytes, expected 46"));
        let line = line_with("train-labels-idx1-ubyte", &labels(&[1, 2, 3, 4, 5])[..12]);
        assert!(line.contains("12 bytes, expected 13"), "{line}");
    }

    #[test]
    fn a_truncated_archive_is_refused() {
        let archive = gz(&images(2, 3, 2));
        let line = line_with("t10k-images-idx3-ubyte.gz", &archive[..archive.len() / 2]);
        assert!(line.contains("cannot read"), "{line}");
    }

    #[test]
    fn other_magic_numbers_are_refused() {
        let line = line_with("train-images-idx3-ubyte", &labels(&[1, 2, 3, 4, 5]));
        assert!(line.contains("magic number 0x00000801, expected 0x00000803 (images)"), "{line}");
    }

    #[test]
    fn a_header_cannot_ask_for_more_than_there_is() {
        let mut huge = images(5, 3, 2);
        huge[4..16].fill(0xff);
        assert!(line_with("train-images-idx3-ubyte", &huge).contains("46 bytes, expected"));
        let mut empty = images(5, 3, 2);
        empty[8..12].fill(0);
        assert!(line_with("train-images-idx3-ubyte", &empty).contains("row count 0, expected at least 1"));
    }

    #[test]
    fn labels_must_be_digits() {
        let line = line_with("train-labels-idx1-ubyte", &labels(&[0, 1, 2, 10, 4]));
        assert!(line.contains("label 10 at index 3, expected 0 to 9"), "{line}");
    }

    #[test]
    fn counts_must_agree() {
        let line = line_with("train-labels-idx1-ubyte", &labels(&[0, 1, 2, 3]));
        assert!(line.contains("label count 4, expected 5 as in "), "{line}");
        let folder = folder();
        fs::write(folder.path().join("t10k-images-idx3-ubyte"), images(2, 2, 2)).unwrap();
        let line = load(folder.path()).unwrap_err().to_string();
        assert!(line.contains("pixels per image 4, expected 6"), "{line}");
    }

    #[test]
    fn missing_files_and_folders_are_named() {
        let folder = folder();
        fs::remove_file(folder.path().join("t10k-labels-idx1-ubyte.gz")).unwrap();
        let line = load(folder.path()).unwrap_err().to_string();
        assert!(line.contains("t10k-labels-idx1-ubyte: no such file"), "{line}");
        let line = load(&folder.path().join("nowhere")).unwrap_err().to_string();
        assert!(line.contains("nowhere: no such folder"), "{line}");
    }
}
