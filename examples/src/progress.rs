//! A progress bar on standard error, if that is a terminal.

use indicatif::{ProgressBar, ProgressStyle};

/// The steps of one run, as rank 0 shows them.
pub struct Progress {
    bar: ProgressBar,
}

impl Progress {
    /// A bar for `steps` steps of `method`.
    pub fn shown(method: &str, steps: usize) -> Self {
        let bar = ProgressBar::new(steps as u64);
        let template = "{prefix:>8} [{bar:36}] step {pos}/{len}, {msg}, {eta} left";
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style.progress_chars("=> "));
        }
        bar.set_prefix(method.to_owned());
        Self { bar }
    }

    /// Shows nothing: for ranks other than 0.
    pub fn hidden() -> Self {
        Self { bar: ProgressBar::hidden() }
    }

    /// Advances by one step with the loss `loss`.
    pub fn step(&self, loss: f64) {
        self.bar.inc(1);
        if !self.bar.is_hidden() && self.bar.position().is_multiple_of(16) {
            self.bar.set_message(format!("loss {loss:.3}"));
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
