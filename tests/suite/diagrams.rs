//! Diagrams of the pages are text: what they are drawn from has to be what mermaid reads. No browser is here to draw them,
//! so they keep to a small part of its language, and this reads that part strictly.

use std::collections::BTreeSet;

use crate::readme::pages;

#[test]
fn every_diagram_can_be_drawn() {
    let mut seen = 0;
    for (path, text) in pages() {
        for rest in text.split("```mermaid\n").skip(1) {
            let diagram = rest.split("\n```").next().unwrap();
            let drawn = draw(diagram);
            seen += 1;
            assert!(drawn.is_ok(), "{}: {}\n{diagram}", path.display(), drawn.unwrap_err());
        }
    }
    assert!(seen >= 3, "only {seen} diagrams were found");
}

#[test]
fn what_mermaid_would_not_read_is_found() {
    for (wrong, because) in [
        ("flowchart SIDE\n  A --> B", "no direction"),
        ("flowchart LR\n  A -> B", "no arrow"),
        ("flowchart LR\n  A[\"one --> B", "never closed"),
        ("flowchart LR\n  A[a (b)] --> B", "quotes"),
        ("flowchart LR\n  subgraph x\n  A --> B", "1 subgraphs"),
        ("flowchart LR\n  A -- words --> B", "quotes"),
        ("sequenceDiagram\n  participant a\n  a->>b: hello", "b takes no part"),
        ("sequenceDiagram\n  participant a\n  a->>a", "says nothing"),
        ("pie", "no kind"),
    ] {
        let found = draw(wrong).unwrap_err();
        assert!(found.contains(because), "{wrong}: {found}");
    }
}

fn draw(diagram: &str) -> Result<(), String> {
    let (head, body) = diagram.split_once('\n').unwrap_or((diagram, ""));
    let lines = body.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with("%%"));
    match head.split_whitespace().collect::<Vec<_>>()[..] {
        ["flowchart", "LR" | "TB" | "RL" | "BT"] => flowchart(lines),
        ["flowchart", ..] => Err(format!("{head:?} has no direction")),
        ["sequenceDiagram"] => sequence(lines),
        _ => Err(format!("{head:?} is no kind of diagram that is used here")),
    }
}

fn flowchart<'a>(lines: impl Iterator<Item = &'a str>) -> Result<(), String> {
    let mut open = 0_u32;
    for line in lines {
        if let Some(rest) = line.strip_prefix("subgraph ") {
            node(rest)?;
            open += 1;
        } else if line == "end" {
            open = open.checked_sub(1).ok_or("an end of nothing")?;
        } else {
            let mut rest = node(line)?;
            while !rest.is_empty() {
                rest = node(arrow(rest)?)?;
            }
        }
    }
    if open == 0 { Ok(()) } else { Err(format!("{open} subgraphs do not end")) }
}

/// A name, and perhaps what stands in its shape; what follows it.
fn node(text: &str) -> Result<&str, String> {
    let text = text.trim_start();
    let length = text.find(|one: char| !one.is_ascii_alphanumeric() && one != '_').unwrap_or(text.len());
    if length == 0 {
        return Err(format!("no node: {text:?}"));
    }
    let rest = text[length..].trim_start();
    for (opening, closing) in [("{{", "}}"), ("([", "])"), ("[", "]"), ("(", ")")] {
        if let Some(rest) = rest.strip_prefix(opening) {
            return match rest.strip_prefix('"') {
                Some(quoted) => {
                    let (_, rest) = quoted.split_once('"').ok_or(format!("{text:?} is never closed"))?;
                    rest.strip_prefix(closing).ok_or(format!("{text:?} is never closed")).map(str::trim_start)
                }
                None => {
                    let (label, rest) = rest.split_once(closing).ok_or(format!("{text:?} is never closed"))?;
                    let plain = label.chars().all(|one| one.is_alphanumeric() || one == ' ');
                    if plain { Ok(rest.trim_start()) } else { Err(format!("{label:?} needs quotes")) }
                }
            };
        }
    }
    Ok(rest)
}

/// An arrow, and perhaps words on it; what follows it.
fn arrow(text: &str) -> Result<&str, String> {
    for (whole, opening, closing) in [("-->", "--", "-->"), ("-.->", "-.", ".->"), ("==>", "==", "==>")] {
        if let Some(rest) = text.strip_prefix(whole) {
            return Ok(rest);
        }
        if let Some(words) = text.strip_prefix(opening) {
            let quoted =
                words.trim_start().strip_prefix('"').ok_or(format!("words on an arrow need quotes: {text:?}"))?;
            let (_, rest) = quoted.split_once('"').ok_or(format!("{text:?} is never closed"))?;
            return rest.trim_start().strip_prefix(closing).ok_or(format!("no arrow ends here: {rest:?}"));
        }
    }
    Err(format!("no arrow: {text:?}"))
}

fn sequence<'a>(lines: impl Iterator<Item = &'a str>) -> Result<(), String> {
    let mut parties = BTreeSet::new();
    for line in lines {
        if let Some(rest) = line.strip_prefix("participant ") {
            parties.insert(rest.split_once(" as ").map_or(rest, |(name, _)| name).trim());
            continue;
        }
        let (who, what) = line.split_once(':').ok_or(format!("{line:?} says nothing"))?;
        if what.trim().is_empty() || what.contains([';', '#']) {
            return Err(format!("{line:?} says nothing that could be drawn"));
        }
        let who = match who.strip_prefix("Note over ") {
            Some(over) => over.split(',').collect(),
            None => {
                let arrow = ["-->>", "->>"].into_iter().find(|arrow| who.contains(arrow));
                who.split(arrow.ok_or(format!("no arrow: {line:?}"))?).collect::<Vec<_>>()
            }
        };
        if let Some(stranger) = who.iter().find(|name| !parties.contains(*name)) {
            return Err(format!("{stranger} takes no part: {line:?}"));
        }
    }
    Ok(())
}
