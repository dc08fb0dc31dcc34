//! The canonical text `rank-map/1`: one line per slot, one text per rank map.
//!
//! Both sides of a burst compute the digest of this text, and agents of different versions must compute the same one: the
//! form never changes. A new field means `rank-map/2`.

use std::fmt::Write as _;

use super::rank_map::MAX_SLOTS;
use super::{RankMap, RankMapError, Slot};

const HEADER: &str = "rank-map/1";

/// See [`RankMap::to_canonical`].
pub(super) fn format(map: &RankMap) -> String {
    let mut text = format!("{HEADER}\n");
    for Slot { name, max_size, cores, gpus, parent, properties } in map.slots() {
        write!(text, "slot {name} max-size={max_size} cores={cores} gpus={gpus}").expect("a String takes any text");
        if let Some(parent) = parent {
            text.extend([" parent=", parent]);
        }
        if !properties.is_empty() {
            text.extend([" properties=", &properties.join(",")]);
        }
        text.push('\n');
    }
    text
}

/// See [`RankMap::parse_canonical`].
pub(super) fn parse(text: &str) -> Result<RankMap, RankMapError> {
    let mut lines = text.split('\n').zip(1..);
    match lines.next() {
        Some((HEADER, _)) => {}
        _ => return Err(RankMapError::Syntax { line: 1, expected: "\"rank-map/1\", the one form this version reads" }),
    }
    let mut slots = Vec::new();
    for (content, line) in lines.filter(|(content, _)| !content.is_empty()) {
        if slots.len() == MAX_SLOTS {
            return Err(RankMapError::TooManySlots { count: slots.len() + 1 });
        }
        let expected = "\"slot NAME max-size=N cores=N gpus=N [parent=NAME] [properties=A,B]\"";
        slots.push(parse_slot(content).ok_or(RankMapError::Syntax { line, expected })?);
    }
    let map = RankMap::new(slots)?;
    // Other spellings of the same map (zeros before a number, properties in another order) would have other digests.
    if format(&map) == text { Ok(map) } else { Err(RankMapError::NotCanonical) }
}

fn parse_slot(content: &str) -> Option<Slot> {
    let mut words = content.split(' ').peekable();
    if words.next() != Some("slot") {
        return None;
    }
    let name = words.next()?.to_owned();
    let mut value = |key: &str| words.next_if(|word| word.starts_with(key)).map(|word| &word[key.len()..]);
    let max_size = value("max-size=")?.parse().ok()?;
    let cores = value("cores=")?.parse().ok()?;
    let gpus = value("gpus=")?.parse().ok()?;
    let parent = value("parent=").map(str::to_owned);
    let properties = value("properties=").map_or_else(Vec::new, |list| list.split(',').map(str::to_owned).collect());
    words.next().is_none().then_some(Slot { name, max_size, cores, gpus, parent, properties })
}
