//! What reads the input of strangers, one plain function each.
//!
//! `tests/fuzz/run` fuzzes them by coverage, with libFuzzer. `tests/suite/fuzz.rs` replays seeds and regressions without it.
//! A target panics if what it looks at breaks a rule; time and memory are watched by whoever calls it.
//!
//! | file | whose input |
//! |---|---|
//! | `wire` | peers: frames, messages, states, sessions, the tunnel |
//! | `joining` | whoever joins: tokens, requests |
//! | `formats` | users and root clusters: host lists, idsets, rank maps, certificates, handshakes of brokers |
//! | `hosting` | a root: its template, through admission and rendering |
//! | `documents` | API servers and users: reviews, configuration, boot files, MiniClusters; brokers: looks at a queue |
//! | `grow` | how bytes become a JSON document that is nearly right |

mod documents;
mod formats;
mod grow;
mod hosting;
mod joining;
mod wire;

/// Something that reads what strangers say.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Its name, and that of its folder of regressions.
    pub name: &'static str,
    /// Reads it, and panics if a rule is broken.
    pub run: fn(&[u8]),
    /// Input that gets far.
    pub seeds: fn() -> Vec<Vec<u8>>,
    /// Words that such input has.
    pub words: &'static [&'static str],
}

/// All of them.
pub static TARGETS: [Target; 17] = [
    wire::FRAMES,
    wire::MESSAGES,
    wire::STATES,
    wire::SESSION,
    wire::TUNNEL,
    joining::TOKEN,
    joining::ENROLMENT,
    formats::HOSTLIST,
    formats::IDSET,
    formats::RANK_MAP,
    formats::CERTIFICATE,
    formats::HANDSHAKE,
    hosting::TEMPLATE,
    documents::MINI_CLUSTER,
    documents::REVIEW,
    documents::CONFIGURATION,
    documents::LOOK,
];

/// Most bytes of memory that an input of this size may take: the largest bounds of readers, and what is made beside.
pub fn most_memory(size: usize) -> usize {
    (96 << 20) + 256 * size
}

/// The target of a name.
pub fn target(name: &str) -> Option<Target> {
    TARGETS.iter().find(|target| target.name == name).copied()
}

/// Texts as seeds.
fn texts(all: &[&str]) -> Vec<Vec<u8>> {
    all.iter().map(|text| text.as_bytes().to_vec()).collect()
}
