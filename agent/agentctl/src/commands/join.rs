//! `agentctl join`: makes this cluster a peer of the one that made a token, and that one a peer of this.

use std::io::Read;

use tributary::api::peer::{ClusterPeer, ClusterPeerSpec};
use tributary::clock::{SystemClock, SystemRng};
use tributary::federation::enrol::{self, Introduction, JoinError, JoinToken, TokenError};
use tributary::federation::identity::TrustBundle;
use tributary::federation::mesh::resolve::Resolver;

use super::peer::{self, Wanted, Word};
use super::peering::{self, KnownBy};
use crate::cli::{Join, Target};
use crate::error::{Failure, Result, failed};
use crate::{kubernetes, output};

/// Runs `agentctl join`.
pub(crate) async fn run(target: &Target, join: &Join) -> Result<()> {
    let token = parse(&text(&join.token)?)?;
    let (namespace, name) = (&target.agent_namespace, token.cluster.as_str());
    let labels = peer::labels(&join.labels)?;
    let client = kubernetes::client(target).await?;
    let card = peering::card(&client, namespace).await?;
    let own = peering::introduction(&card);
    // All that can fail here fails before the token is used.
    let existing = kubernetes::get(&client, namespace, name).await?;
    peering::check_existing(existing.as_ref(), &token.authorities, KnownBy::ItsWord { uid: None }, &card)?;
    peer::check_limits(existing.as_ref(), &join.import, &peer::not_written(namespace, name))?;
    let mut draft = ClusterPeer::new(name, ClusterPeerSpec::default());
    draft.metadata.namespace = Some(namespace.clone());
    peer::try_write(&client, namespace, &draft).await?;

    let resolve = Resolver::system(Box::new(SystemRng));
    let clock = SystemClock::shared();
    let joined = enrol::join(&token, &own, &resolve, &clock).await;
    let who: Introduction = joined.map_err(|error| refused(name, &error))?;
    let bundle = TrustBundle::from_pem(who.trust_bundle.as_bytes());
    let bundle = bundle.map_err(failed(
        format!("failed to use the trust bundle of {name}"),
        format!(
            "the owner of {name} looks at ca.crt of its identity, and makes another token: \
             `agentctl --context {name} token create`"
        ),
    ))?;
    let word = KnownBy::ItsWord { uid: Some(who.cluster_uid.as_str()) };
    let check = |existing: Option<&ClusterPeer>| peering::check_existing(existing, bundle.fingerprints(), word, &card);
    let peer = peering::cluster_peer(&who, namespace, join.import.policy(), join.hide_status, labels);
    let wanted = Wanted { peer: &peer, word: Word::Cluster, import: &join.import, check: &check };
    let written = peer::write(&client, namespace, wanted).await?;
    let us = &card.cluster;
    output::print(&format!("{us} and {name} are peers\n{us} imports {}\n", peer::imports(&written)))?;
    if !join.wait.is_zero() {
        let endpoint = peering::connected(&client, namespace, name, join.wait).await?;
        output::print(&format!("connected ({endpoint})\n"))?;
    }
    Ok(())
}

fn text(argument: &str) -> Result<String> {
    if argument != "-" {
        return Ok(argument.to_owned());
    }
    let mut text = String::new();
    std::io::stdin().read_to_string(&mut text).map_err(failed(
        "failed to read the token from standard input",
        "write it into a file, and: `agentctl join - < token.txt`",
    ))?;
    Ok(text)
}

fn parse(text: &str) -> Result<JoinToken> {
    text.parse().map_err(|error: TokenError| {
        let hint = match error {
            TokenError::NotAToken => {
                "a token is what `agentctl token create` prints, asked of the other cluster by --context"
            }
            TokenError::OtherVersion => "use the agentctl of the version that made it, on both sides",
            TokenError::Damaged => "copy all of it, or hand it over in a file: `agentctl join - < token.txt`",
        };
        Failure::new("failed to read the token").because(error).hint(hint)
    })
}

fn refused(name: &str, error: &JoinError) -> Failure {
    let hint = error.hint();
    // Whoever has rights there, too, need not ask anybody.
    let there = match hint.contains("for a new one") {
        true => format!("; in {name}: `agentctl --context {name} token create`"),
        false => String::new(),
    };
    Failure::new(format!("failed to join cluster {name}")).because(error.clone()).hint(format!("{hint}{there}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_token_is_refused_with_a_hint() {
        let wrong = ["hello", "tributary-7.AAAA", "tributary-1.AAAA"];
        let texts: Vec<String> = wrong.map(|text| parse(text).unwrap_err().to_string()).into();
        insta::assert_snapshot!(texts.join("\n\n---\n\n"));
    }
}
