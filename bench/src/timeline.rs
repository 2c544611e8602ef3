//! What the ranks of a job did when, in the trace-event format that Perfetto and Chrome's tracing open.
//!
//! A rank is a process of the timeline. Its tracks are steps, selection, the collectives that go on at the
//! same time, waiting, and applying.

use std::time::{Duration, Instant};

use brevity::{BucketReport, GradientExchange, Group, Phase, PhaseReport, StepReport};
use serde::Serialize;
use serde_json::{Value, json};

use crate::{Error, Result};

/// Barriers after which clocks are compared.
const BARRIERS: usize = 16;

/// The tracks of a rank. Those after the last are of collectives.
const TRACKS: [&str; 4] = ["step", "select", "wait", "apply"];

/// The names that are told of a bucket with many tensors.
const MOST_NAMES: usize = 2;

/// The events of one rank.
pub struct Timeline {
    rank: u32,
    /// The same moment on all ranks.
    origin: Instant,
    /// Tracks for collectives that go on at the same time.
    lanes: usize,
    events: Vec<Event>,
}

/// A span of time on a track. Times are in microseconds.
#[derive(Serialize)]
struct Event {
    name: String,
    cat: &'static str,
    /// Complete: it has a begin and a duration.
    ph: char,
    ts: f64,
    dur: f64,
    pid: u32,
    tid: usize,
    args: Value,
}

impl Timeline {
    /// An empty timeline. A collective call, which finds a moment that is common to all ranks: the end of the
    /// shortest of several barriers. Clocks are as far apart as that takes.
    ///
    /// # Errors
    /// If a rank is lost.
    pub fn start(group: &Group) -> Result<Self> {
        group.barrier()?;
        let (mut ends, mut took) = (Vec::new(), Vec::new());
        for _ in 0..BARRIERS {
            let begun = Instant::now();
            group.barrier()?;
            let end = Instant::now();
            took.push((end - begun).as_nanos() as u64);
            ends.push(end);
        }
        let mut all = vec![0; BARRIERS * group.world_size() as usize];
        group.all_gather(&took, &mut all)?;
        let longest = |barrier: usize| all.iter().skip(barrier).step_by(BARRIERS).max();
        let shortest = (0..BARRIERS).min_by_key(|&barrier| longest(barrier)).unwrap_or(0);
        Ok(Self { rank: group.rank(), origin: ends[shortest], lanes: 0, events: Vec::new() })
    }

    /// Adds a step of an exchange, with the exchange's names of tensors.
    pub fn add(&mut self, step: &str, exchange: &GradientExchange, report: &StepReport) {
        let names: Vec<&str> = exchange.tensors().map(|(name, _)| name).collect();
        let Some(begun) = report.begun else { return };
        let since = begun.saturating_duration_since(self.origin);
        let phases = |bucket: &BucketReport| bucket.phases.clone();
        let end = report.buckets.iter().flat_map(phases).map(|phase| phase.start + phase.took).max();
        self.push(step.to_owned(), (TRACKS[0], 0), (since, end.unwrap_or_default()), json!({}));
        let mut collectives: Vec<(PhaseReport, &BucketReport)> = Vec::new();
        for bucket in &report.buckets {
            for &phase in &bucket.phases {
                if phase.phase == Phase::Communicate {
                    collectives.push((phase, bucket));
                    continue;
                }
                let track = TRACKS.iter().position(|track| *track == phase.phase.name()).unwrap_or(0);
                let name = phase.tensor.map_or_else(|| title(bucket, &names), |one| names[one].to_owned());
                self.push(name, (phase.phase.name(), track), (since + phase.start, phase.took), json!({}));
            }
        }
        self.add_collectives(since, collectives, &names);
    }

    /// Adds the collectives of a step: each to the first track that is free when it begins.
    fn add_collectives(
        &mut self,
        since: Duration,
        mut collectives: Vec<(PhaseReport, &BucketReport)>,
        names: &[&str],
    ) {
        collectives.sort_by_key(|(phase, _)| phase.start);
        let mut lanes: Vec<Duration> = Vec::new();
        for (phase, bucket) in collectives {
            let lane = lanes.iter().position(|end| *end <= phase.start).unwrap_or(lanes.len());
            lanes.resize(lanes.len().max(lane + 1), Duration::ZERO);
            lanes[lane] = phase.start + phase.took;
            let tensors: Vec<&str> = bucket.tensors.iter().map(|&tensor| names[tensor]).collect();
            let args = json!({
                "tensors": tensors,
                "bytes_sent": bucket.bytes_sent,
                "bytes_received": bucket.bytes_received,
                "bytes_shared": bucket.bytes_shared,
            });
            let track = (phase.phase.name(), TRACKS.len() + lane);
            self.push(title(bucket, names), track, (since + phase.start, phase.took), args);
        }
        self.lanes = self.lanes.max(lanes.len());
    }

    fn push(
        &mut self,
        name: String,
        (cat, tid): (&'static str, usize),
        (begun, took): (Duration, Duration),
        args: Value,
    ) {
        let micros = |time: Duration| time.as_nanos() as f64 / 1e3;
        let (ts, dur) = (micros(begun), micros(took));
        self.events.push(Event { name, cat, ph: 'X', ts, dur, pid: self.rank, tid, args });
    }

    /// The text of the file, with the events of all ranks: on rank 0, else `None`. A collective call.
    ///
    /// # Errors
    /// If a rank is lost.
    pub fn gather(self, group: &Group) -> Result<Option<String>> {
        // Those of a rank are at least its names.
        let own = self.text()?;
        let all = group.all_gather_varying(own.into_bytes())?;
        if group.rank() > 0 {
            return Ok(None);
        }
        let all: Vec<_> = all.iter().map(|text| String::from_utf8_lossy(text)).collect();
        Ok(Some(format!("{{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n{}\n]}}\n", all.join(",\n"))))
    }

    /// The events of this rank, one a line, and before them the names of its tracks.
    fn text(&self) -> Result<String> {
        let pid = self.rank;
        let mut heads = vec![
            head("process_name", (pid, 0), &json!({ "name": format!("rank {pid}") })),
            head("process_sort_index", (pid, 0), &json!({ "sort_index": pid })),
        ];
        let lanes = (0..self.lanes).map(|_| Phase::Communicate.name());
        for (track, name) in TRACKS.into_iter().chain(lanes).enumerate() {
            heads.push(head("thread_name", (pid, track), &json!({ "name": name })));
            heads.push(head("thread_sort_index", (pid, track), &json!({ "sort_index": track })));
        }
        let lines = heads.iter().map(serde_json::to_string);
        let lines = lines.chain(self.events.iter().map(serde_json::to_string));
        let lines: serde_json::Result<Vec<String>> = lines.collect();
        lines
            .map(|lines| lines.join(",\n"))
            .map_err(|error| Error::System { what: "can't write the timeline".into(), why: error.into() })
    }
}

/// A name or an order of a rank or of one of its tracks.
fn head(name: &str, (pid, tid): (u32, usize), args: &Value) -> Value {
    json!({ "name": name, "ph": "M", "pid": pid, "tid": tid, "args": args })
}

/// The first tensors of a bucket.
fn title(bucket: &BucketReport, names: &[&str]) -> String {
    let first: Vec<&str> = bucket.tensors.iter().take(MOST_NAMES).map(|&tensor| names[tensor]).collect();
    let rest = bucket.tensors.len().saturating_sub(MOST_NAMES);
    let first = first.join(", ");
    if rest > 0 { format!("{first} and {rest} more") } else { first }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::thread;

    use brevity::transport::local;
    use brevity::{Policy, Settings};

    use super::*;

    /// A time of a bucket.
    type Time = fn(&BucketReport) -> Duration;

    /// Two steps of three ranks: the reports, and the file of rank 0.
    fn traced() -> (Vec<Vec<StepReport>>, String) {
        let ranks = local::world(3).into_iter().map(|rank| {
            thread::spawn(move || {
                let group = Group::new(Box::new(rank), Settings::default());
                let mut exchange = GradientExchange::builder(&group)
                    .bucket_bytes(2000)
                    .tensor("a", [400], Policy::dense())
                    .tensor("b", [400], Policy::gtopk(0.1))
                    .tensor("c", [100], Policy::topk(0.1))
                    .tensor("d", [100], Policy::topk(0.1))
                    .tensor("e", [100], Policy::topk(0.1))
                    .build()
                    .unwrap();
                let mut timeline = Timeline::start(&group).unwrap();
                let mut reports = Vec::new();
                for number in 0..2 {
                    let mut gradients: Vec<Vec<f32>> =
                        exchange.tensors().map(|(_, count)| vec![0.5; count]).collect();
                    let report = exchange.begin().unwrap().finish(&mut gradients).unwrap();
                    timeline.add(&format!("step {number}"), &exchange, &report);
                    reports.push(report);
                }
                (reports, timeline.gather(&group).unwrap())
            })
        });
        let ranks: Vec<_> = ranks.collect();
        let ranks: Vec<_> = ranks.into_iter().map(|rank| rank.join().unwrap()).collect();
        assert!(ranks[1..].iter().all(|(_, text)| text.is_none()));
        let text = ranks[0].1.clone().unwrap();
        (ranks.into_iter().map(|(reports, _)| reports).collect(), text)
    }

    #[test]
    fn the_file_has_the_phases_of_all_ranks() {
        let (reports, text) = traced();
        let file: Value = serde_json::from_str(&text).unwrap();
        let events = file["traceEvents"].as_array().unwrap();
        let number = |event: &Value, field: &str| event[field].as_f64().unwrap();
        let mut tracks: BTreeMap<(u64, u64), Vec<(f64, f64)>> = BTreeMap::new();
        for event in events.iter().filter(|event| event["ph"] == "X") {
            let track = (event["pid"].as_u64().unwrap(), event["tid"].as_u64().unwrap());
            tracks.entry(track).or_default().push((number(event, "ts"), number(event, "dur")));
        }
        for (track, spans) in &mut tracks {
            spans.sort_by(|a, b| a.0.total_cmp(&b.0));
            let apart = spans.windows(2).all(|pair| pair[0].0 + pair[0].1 <= pair[1].0 + 1e-2);
            assert!(apart, "{track:?}: {spans:?}");
            let name = events.iter().find(|event| {
                let of = (event["pid"].as_u64().unwrap(), event["tid"].as_u64().unwrap());
                event["name"] == "thread_name" && of == *track
            });
            assert!(name.is_some(), "{track:?}");
        }
        for (rank, reports) in reports.iter().enumerate() {
            let of = |name: &str| {
                let own = |event: &&Value| event["pid"] == rank as u64 && event["cat"] == name;
                events.iter().filter(own).collect::<Vec<_>>()
            };
            assert_eq!(of("step").len(), 2);
            let times: [(&str, Time); 4] = [
                ("select", |bucket| bucket.select),
                ("communicate", |bucket| bucket.communicate),
                ("wait", |bucket| bucket.wait),
                ("apply", |bucket| bucket.apply),
            ];
            for (name, time) in times {
                let expected: Duration = reports.iter().map(|report| report.total(time)).sum();
                let found: f64 = of(name).iter().map(|event| number(event, "dur")).sum();
                assert!((found - expected.as_nanos() as f64 / 1e3).abs() < 1e-2, "{name}: {found}");
            }
            let sent = reports.iter().flat_map(|report| &report.buckets).map(|bucket| bucket.bytes_sent);
            let told =
                of("communicate").into_iter().map(|event| event["args"]["bytes_sent"].as_u64().unwrap());
            assert_eq!(told.sum::<u64>(), sent.sum::<u64>());
            let steps = of("step");
            let inside = |event: &Value| {
                steps.iter().any(|step| {
                    let (begin, end) = (number(step, "ts"), number(step, "ts") + number(step, "dur"));
                    begin <= number(event, "ts") + 1e-2
                        && number(event, "ts") + number(event, "dur") <= end + 1e-2
                })
            };
            assert!(
                ["select", "communicate", "wait", "apply"]
                    .iter()
                    .all(|name| of(name).into_iter().all(inside))
            );
        }
        assert!(text.contains("\"rank 2\"") && text.contains("\"c, d and 1 more\""), "{text}");
    }
}
